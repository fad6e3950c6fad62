"""Runs an audit: all checks on one policy, or some of them."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from engram.agent.metta_agent import MettaAgent
from engram.agent.policies.base import Policy
from engram.audit.checks import CHEAP, CHECKS
from engram.audit.context import QUICK, AuditContext, AuditSizes, cannot_audit, describe
from engram.audit.result import (
    AuditError,
    AuditReport,
    Check,
    CheckResult,
    DoesNotApplyError,
    Status,
    Verdict,
)
from engram.audit.retained import copy_policy
from engram.audit.source_location import source_location
from engram.audit.target import build, spec_of
from engram.audit.text_report import as_text
from engram.nearest import suggestion
from engram.settings import UserError


def run_audit(
    make: Callable[..., nn.Module],
    env: object,
    *,
    seed: int = 0,
    only: Sequence[str] = (),
    adapter: str = "auto",
    takes_options: bool = False,
    name: str = "",
    sizes: AuditSizes | None = None,
    progress: Callable[[Check], None] = lambda check: None,
) -> AuditReport:
    """Audit the policy that `make()` returns; with `takes_options`, `make` passes keyword arguments on to it.

    Neither random states nor the caller's policy change.
    """
    checks = select_checks(only)
    with preserved_random_states(), torch.enable_grad():
        with cannot_audit("it cannot be audited"):
            audit = AuditContext(make, spec_of(env), seed, adapter, takes_options, sizes)
        results = []
        for check in checks:
            progress(check)
            results.append(run_check(check, audit))
            audit.failed |= set() if results[-1].passed else {check.name}
    policy = audit.policy
    return AuditReport(
        target=name or type(policy).__name__,
        policy=type(policy).__name__,
        adapter=audit.original.kind,
        env=audit.spec.name,
        seed=seed,
        parameters=sum(p.numel() for p in policy.parameters()),
        results=tuple(results),
        assumed_loop=audit.original.assumed_loop,
    )


def check(
    policy: Any,
    env: object,
    *,
    seed: int = 0,
    only: Sequence[str] = (),
    adapter: str = "auto",
    sizes: AuditSizes | None = None,
) -> AuditReport:
    """Audit a policy, a class, or a function that makes one; raises `AuditError` with the report if a check fails.

    Copies are played: the policy itself does not change.
    """
    make, takes_options = _maker(policy, env)
    report = run_audit(make, env, seed=seed, only=only, adapter=adapter, takes_options=takes_options, sizes=sizes)
    if not report.passed:
        raise AuditError(as_text(report), report)
    return report


def assert_memory_is_right(policy: Any, env: object, **options: Any) -> None:
    """`check`, under a name that reads well in a test."""
    check(policy, env, **options)


def cheap_checks(policy: Any, env: object, *, seed: int = 0) -> list[CheckResult]:
    """The checks worth repeating during training: on a copy, in about a second."""
    make, _ = _maker(policy, env)
    return list(run_audit(make, env, seed=seed, only=CHEAP, sizes=QUICK).results)


class MemoryFaultError(UserError):
    """The policy being trained fails a memory check; the last good checkpoint remains."""

    exit_code = 1


def stop_on_memory_fault(agent: MettaAgent) -> None:
    """Raise if the agent fails one of the cheap checks. The agent and all random states stay unchanged."""
    failures = [result for result in cheap_checks(agent, agent.env_spec) if not result.passed]
    if not failures:
        return
    details = [f"{f.name}: {f.finding}. {f.effect} Look at {f.where}. {f.fix}" for f in failures]
    raise MemoryFaultError(
        "\n".join(
            [
                f"trainer.audit: {type(agent.policy).__name__} fails {len(failures)} of the memory checks that run "
                "during training. This epoch was not saved.",
                *details,
                "`engram audit` on the run or the policy runs all checks; --html FILE shows figures.",
            ]
        )
    )


def select_checks(only: Sequence[str]) -> list[Check]:
    """Checks by name; all if none is named."""
    names = [name.strip().replace("-", "_").replace(" ", "_") for name in only if name.strip()]
    for name in names:
        if name not in CHECKS:
            raise UserError(f"--only: no check '{name}'{suggestion(name, CHECKS)} ({', '.join(CHECKS)})")
    return [check for name, check in CHECKS.items() if name in names or not names]


def run_check(check: Check, audit: AuditContext) -> CheckResult:
    """One check; an error raised by the policy is a failure."""
    began = time.perf_counter()
    status: Status
    try:
        verdict = _verdict(check, audit)
        status = "pass" if verdict.passed else "fail"
    except DoesNotApplyError as reason:
        verdict, status = Verdict(True, finding=str(reason)), "skip"
    except Exception as error:
        verdict, status = Verdict(False, finding=f"the policy raised {describe(error)}"), "fail"
    where = source_location(audit.policy, *check.methods)
    return CheckResult(
        name=check.name,
        question=check.question,
        status=status,
        measured=verdict.measured,
        bound=verdict.bound,
        at_least=verdict.at_least,
        finding=verdict.finding,
        effect=check.effect,
        where=f"{verdict.where}, in {where}" if verdict.where else where,
        fix=_fix(check, verdict, audit.original.uses_td),
        cause=verdict.cause,
        notes=verdict.notes,
        evidence=verdict.evidence,
        seconds=time.perf_counter() - began,
    )


@contextmanager
def preserved_random_states() -> Iterator[None]:
    """Restore the random states of torch, NumPy and Python afterwards."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def _fix(check: Check, verdict: Verdict, uses_td: bool) -> str:
    if uses_td:
        return verdict.fix or check.fix
    return verdict.fix_without_engram or check.fix_without_engram or verdict.fix or check.fix


def _verdict(check: Check, audit: AuditContext) -> Verdict:
    if check.td_only and not audit.original.uses_td:
        raise DoesNotApplyError(
            f"only for policies that are called with a td; this is played as '{audit.original.kind}'"
        )
    if check.needs_learning and audit.learning_error:
        raise DoesNotApplyError("learning raises an error: see modes")
    torch.manual_seed(audit.seed)
    return check.run(audit)


def _maker(policy: Any, env: object) -> tuple[Callable[..., nn.Module], bool]:
    """A function that makes the policy, and whether its keyword arguments are options of the policy."""
    spec = spec_of(env)
    if isinstance(policy, type) and issubclass(policy, Policy):
        return partial(policy, spec), True
    if isinstance(policy, type):
        return partial(build, policy, policy.__name__, spec, {}), False
    if not isinstance(policy, nn.Module) and isinstance(getattr(policy, "policy", None), nn.Module):
        policy = policy.policy  # an algorithm holds its policy
    if not isinstance(policy, nn.Module) and callable(policy):
        return policy, False
    return lambda: copy_policy(policy, policy), False
