"""The help of `engram train` and `engram validate`: groups and their choices, the common settings, examples."""

from typing import Any

from engram.cli.arguments import ArgumentParser
from engram.config.groups import DEFAULTS, GROUPS, choices
from engram.config.run import RunSettings
from engram.training.sizes import SIZE_NAMES

COMMON_SETTINGS = {  # setting -> what it is; the default comes from the model
    "run": "name of the run and its directory; the same command again resumes it",
    "seed": "of everything random",
    "device": "auto, cpu, cuda or mps",
    "init_from": "directory of a run or checkpoint to take the initial weights from",
    "trainer.total_timesteps": "steps of all agents together",
    "trainer.num_workers": "worker processes that step environments; 0: step them in this process",
    "trainer.num_envs": "environments stepped in parallel",
    "trainer.bptt_horizon": "steps of a segment, through which gradients flow",
    "trainer.batch_size": "steps of an epoch",
    "trainer.minibatch_size": "steps of a gradient step",
    "trainer.memory": "carry it from one batch to the next, reset it before each, or off",
    "trainer.optimizer.learning_rate": "of trainer.optimizer.type: adam, adamw or muon",
    "trainer.ppo.gamma": "discount factor",
    "trainer.ppo.ent_coef": "weight of the entropy bonus",
    "trainer.checkpoint.interval": "epochs between checkpoints",
    "trainer.evaluate_interval": "epochs between evaluations",
    "trainer.audit": "epochs between audits of the memory",
}
EXAMPLES = (
    "run=first",
    "py_agent=latent_attn_tiny env=arena trainer.total_timesteps=10_000_000",
    "py_agent=fast env=gym env.id=CartPole-v1 trainer.bptt_horizon=32",
    "task=popgym/RepeatPreviousEasy seed=2",
    "py_agent=my_policy.py:MyPolicy py_agent.my_option=3 env=recall env.delay=20",
)
USER_CHOICES = {
    "py_agent": ("FILE.py:CLASS", "Your own, or PACKAGE.MODULE:CLASS; py_agent.ANY=VALUE is passed on to it."),
    "agent": ("FILE.yaml", "Your own; every group takes a YAML file."),
    "task": ("FILE.yaml", "Your own."),
}


def settings_parser(verb: str, description: str) -> ArgumentParser:
    """The parser of a verb that takes the settings of a run."""
    return ArgumentParser(
        prog=f"engram {verb}",
        usage=f"engram {verb} [GROUP=CHOICE …] [SETTING=VALUE …]",
        description=description,
        epilog=_help_text(verb),
    )


def _help_text(verb: str) -> str:
    lines = ["Groups and their choices (* default):"]
    for group, meaning in GROUPS.items():
        lines += ["", f"  {group}: {meaning}"]
        width = max(18, *map(len, choices(group)))
        for name, text in choices(group).items():
            mark = "*" if DEFAULTS.get(group) == name else " "
            lines.append(f"   {mark}{name:<{width}} {text}")
        if group in USER_CHOICES:
            form, text = USER_CHOICES[group]
            lines.append(f"    {form:<{width}} {text}")
    lines += ["", "Common settings and their defaults:", ""]
    lines += [f"  {f'{name}={_default(name)}':<46} {meaning}" for name, meaning in COMMON_SETTINGS.items()]
    lines += ["", "`engram validate …` prints every setting of a run.", "", "Examples:", ""]
    return "\n".join([*lines, *(f"  engram {verb} {example}" for example in EXAMPLES)])


def _default(name: str) -> str:
    """The default of a setting as one would type it."""
    if name == "run":
        return "AGENT_ENV"
    first, *rest = name.split(".")
    value: Any = RunSettings.model_fields[first].default
    for part in rest:
        value = getattr(value, part)
    if value is None:
        return "(fits the machine)" if name in SIZE_NAMES else "null"
    return str(value)
