"""`engram.audit`, and how it finds the policy: by its name, a file, a run or a class."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from engram.agent.policies.base import Policy
from engram.agent.policy_factory import make_policy
from engram.agent.settings import POLICIES, PyAgent, YamlAgent
from engram.api.arguments import Env, env_choice
from engram.api.run import Run
from engram.audit.context import AuditSizes
from engram.audit.result import AuditReport, CannotAuditError
from engram.audit.run import run_audit
from engram.audit.target import AuditTarget, find_object, target_from
from engram.config.evaluation import enclosing_run, stored_path
from engram.config.groups import choices
from engram.config.load import SETTINGS_FILE, load, load_run
from engram.config.run import RunSettings
from engram.env import user_code
from engram.env.registry import make_spec
from engram.env.spec import EnvSpec
from engram.nearest import suggestion
from engram.settings import UserError
from engram.training.checkpoint.loading import find_checkpoint, load_agent

LARGEST = 128  # rows and steps: larger runs are rehearsed at this size
ALL = (  # what `audit all` audits: a name, then the settings that choose it
    *((name, f"py_agent={name}") for name in POLICIES),
    *((f"agent={name}", f"agent={name}") for name in choices("agent")),
    *((f"fast, {core}", "py_agent=fast", f"py_agent.core={core}") for core in ("gru", "mingru", "lru", "attention")),
)


def audit(
    policy: Any,
    env: Env | None = None,
    *,
    only: Sequence[str] = (),
    seed: int = 0,
    adapter: str = "auto",
    trust: bool = False,
    **settings: Any,
) -> AuditReport:
    """Check that a policy handles its memory correctly. `report.passed` is true if all checks hold.

    `policy` is what `engram audit` takes (a name, a YAML file, a run, `file.py:Class`), or a class, a module, or a
    function of the environment that makes one. `env` is the environment it is made for, by default the T-maze.
    """
    given = dict(settings)
    if env is not None:
        given |= env if isinstance(env, Mapping) else {"env": env_choice(env)}
    target = _target(policy, given, trust)
    return run_audit(
        target.make,
        target.spec,
        seed=seed,
        only=[only] if isinstance(only, str) else only,
        adapter=adapter,
        takes_options=target.takes_options,
        name=target.name,
        sizes=target.sizes,
    )


def _target(policy: Any, settings: Mapping[str, Any], trust: bool) -> AuditTarget:
    if isinstance(policy, Run):
        policy = policy.directory
    if isinstance(policy, type) and issubclass(policy, Policy):
        policy = user_code.register(policy)
    if isinstance(policy, str | os.PathLike):
        if policy == "all":
            raise UserError("audit: one policy at a time, not all")
        return targets(os.fspath(policy), [], trust, settings)[0]
    if not isinstance(policy, nn.Module) and not callable(policy):
        raise UserError(f"audit: {policy!r} is of type {type(policy).__name__}: give a policy, its name, or a run")
    name = getattr(policy, "__name__", type(policy).__name__)
    return target_from(policy, name, make_spec(load([], settings=settings).env), {})


def targets(
    target: str, overrides: Sequence[str], trust: bool = False, settings: Mapping[str, Any] | None = None
) -> list[AuditTarget]:
    """The policies to audit, with settings of a command line or of Python; raises with the nearest name."""
    if target == "all":
        return [_from_settings(load([*chosen, *overrides], settings=settings), name) for name, *chosen in ALL]
    if not target:
        return [_from_settings(load(overrides, settings=settings))]
    if target in POLICIES:
        return [_from_settings(load([f"py_agent={target}", *overrides], settings=settings), target)]
    if target in choices("agent") or target.endswith((".yaml", ".yml")):
        return [_from_settings(load([f"agent={target}", *overrides], settings=settings), target)]
    if ":" in target or target.endswith(".py"):
        return [_from_code(target, overrides, settings)]
    return [_from_run(target, [*overrides, *(settings or {})], trust)]


def _from_settings(settings: RunSettings, name: str = "") -> AuditTarget:
    target = _of_policy(settings.policy, make_spec(settings.env), name or settings.policy.name)
    return replace(target, sizes=_sizes(settings))


def _sizes(settings: RunSettings) -> AuditSizes:
    """The run's own rows and horizon, where they are known and can be rehearsed in a minute."""
    usual = AuditSizes()
    rows = min((settings.trainer.num_envs or usual.rows), LARGEST)
    return usual._replace(rows=max(rows, 2), horizon=max(min(settings.trainer.bptt_horizon, LARGEST), 2))


def _of_policy(policy: PyAgent | YamlAgent, spec: EnvSpec, name: str) -> AuditTarget:
    def make(**options: Any) -> Policy:
        return make_policy(spec, type(policy)(**(policy.model_dump() | options)))

    return AuditTarget(name, make, spec, takes_options=True)


def _from_code(reference: str, overrides: Sequence[str], given: Mapping[str, Any] | None) -> AuditTarget:
    """A user's class. A `Policy` is built as training builds it."""
    settings = load([f"py_agent={reference}", *overrides], settings=given)
    found = find_object(reference)
    assert settings.py_agent is not None
    spec = make_spec(settings.env)
    if isinstance(found, type) and issubclass(found, Policy):
        return replace(_of_policy(settings.py_agent, spec, reference), sizes=_sizes(settings))
    defaults = PyAgent().arguments
    options = {name: value for name, value in settings.py_agent.arguments.items() if value != defaults.get(name)}
    return replace(target_from(found, reference, spec, options), sizes=_sizes(settings))


def _from_run(reference: str, overrides: Sequence[str], trust: bool) -> AuditTarget:
    """A run or one of its checkpoints, with its weights."""
    path = stored_path(reference)
    if path is None:
        known = [*dict.fromkeys([*POLICIES, *choices("agent"), "all"])]
        raise CannotAuditError(
            f"there is no policy, file or run '{reference}'{suggestion(reference, known) or '.'} "
            f"There are {', '.join(known)}; of your own: file.yaml, runs/NAME, file.py:Class"
        )
    if overrides:
        raise CannotAuditError(f"{reference} is audited as it was trained: leave out {', '.join(overrides)}")
    run = enclosing_run(path)
    if run is None:
        raise CannotAuditError(f"{path} is not a run of Engram's: it has no {SETTINGS_FILE}")
    settings = load_run(run, trust, unused=("env", "trainer"))
    checkpoint = find_checkpoint(path, "audit")
    spec = EnvSpec.from_json(checkpoint.state["env_spec"])
    fresh = _of_policy(settings.policy, spec, reference)

    def make(**options: Any) -> nn.Module:  # options are given to test the constructor: that needs no trained weights
        return fresh.make(**options) if options else load_agent(checkpoint, settings.policy, spec, training=True).policy

    return AuditTarget(reference, make, spec, takes_options=True, sizes=_sizes(settings), run=run)
