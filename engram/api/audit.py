"""The audit of a policy from Python: `engram.audit`."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from engram.agent.policies.base import Policy
from engram.api.arguments import Env, env_choice
from engram.api.audit_targets import targets
from engram.api.run import Run
from engram.audit.result import AuditReport
from engram.audit.run import run_audit
from engram.audit.target import AuditTarget, target_from
from engram.config.load import load
from engram.env import user_code
from engram.env.registry import make_spec
from engram.settings import UserError


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
        raise UserError(f"audit: {policy!r} is a {type(policy).__name__}: give a policy, its name, or a run")
    name = getattr(policy, "__name__", type(policy).__name__)
    return target_from(policy, name, make_spec(load([], settings=settings).env), {})
