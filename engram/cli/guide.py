"""What `engram train --help` prints: the groups and their choices, the settings used most, and examples."""

from typing import Any

from engram.config.groups import GROUPS, choices, defaults
from engram.config.run import RunSettings
from engram.training.sizes import SIZE_NAMES

USEFUL = {  # setting -> what it says; the default comes from the model
    "run": "its name and directory; the same command again goes on with it",
    "seed": "of everything random",
    "device": "auto, cpu, cuda or mps",
    "init_from": "a run's directory, or a checkpoint's, whose weights to begin with",
    "trainer.total_timesteps": "steps of all agents together",
    "trainer.num_workers": "processes that step environments; 0: none but this one",
    "trainer.num_envs": "environments side by side",
    "trainer.bptt_horizon": "steps of a segment, through which gradients flow",
    "trainer.batch_size": "steps of an epoch",
    "trainer.minibatch_size": "steps of one gradient step",
    "trainer.memory": "carry it from one batch to the next, reset it before each, or off",
    "trainer.optimizer.learning_rate": "of trainer.optimizer.type: adam, adamw or muon",
    "trainer.ppo.gamma": "discount of a step",
    "trainer.ppo.ent_coef": "weight of the entropy bonus",
    "trainer.checkpoint.interval": "epochs between checkpoints",
    "trainer.evaluate_interval": "epochs between evaluations",
    "trainer.audit": "epochs between two looks at whether memory is handled right",
}
EXAMPLES = (
    "run=first",
    "py_agent=latent_attn_tiny env=arena trainer.total_timesteps=10_000_000",
    "py_agent=fast env=gym env.id=CartPole-v1 trainer.bptt_horizon=32",
    "py_agent=my_policy.py:MyPolicy py_agent.my_option=3 env=recall env.delay=20",
)
OWN = {
    "py_agent": ("FILE.py:CLASS", "Your own, or PACKAGE.MODULE:CLASS; py_agent.ANY=VALUE is passed on to it."),
    "agent": ("FILE.yaml", "Your own; every group takes a YAML file."),
}


def guide(verb: str) -> str:
    """The help of a verb that takes a run's settings."""
    lines = [f"Usage: engram {verb} [GROUP=CHOICE …] [SETTING=VALUE …]", "", "Groups and their choices (* default):"]
    for group, meaning in GROUPS.items():
        lines += ["", f"  {group}: {meaning}"]
        lines += [f"   {_mark(group, name)}{name:<18} {text}" for name, text in choices(group).items()]
        if group in OWN:
            lines.append(f"    {OWN[group][0]:<18} {OWN[group][1]}")
    lines += ["", "Settings used most, and their defaults:", ""]
    lines += [f"  {f'{name}={_default(name)}':<46} {meaning}".rstrip() for name, meaning in USEFUL.items()]
    lines += ["", "All others: `engram validate …` prints every setting of a run.", "", "Examples:", ""]
    return "\n".join([*lines, *(f"  engram {verb} {example}" for example in EXAMPLES)])


def _mark(group: str, name: str) -> str:
    return "*" if defaults()[group] == name else " "


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
