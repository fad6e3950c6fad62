"""Running an audit: every check on one policy, or those asked for."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from engram.agent.policies.base import Policy
from engram.audit.checks import CHEAP, CHECKS
from engram.audit.context import Audit, describe
from engram.audit.environment import spec_of
from engram.audit.keeping import copy_of
from engram.audit.places import place
from engram.audit.randomness import unchanged_randomness
from engram.audit.result import (
    AuditError,
    CannotAuditError,
    Check,
    CheckResult,
    DoesNotApplyError,
    Report,
    Status,
    Verdict,
)
from engram.audit.table import as_text
from engram.audit.target import build
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
    progress: Callable[[Check], None] = lambda check: None,
) -> Report:
    """Audit the policy that `make()` gives; with `takes_options`, `make` hands keyword arguments on to it.

    Neither random states nor the caller's policy are changed.
    """
    checks = chosen(only)
    with unchanged_randomness(), torch.enable_grad():
        audit = _prepared(make, env, seed, adapter, takes_options)
        results = []
        for check in checks:
            progress(check)
            results.append(run_check(check, audit))
    policy = audit.policy
    return Report(
        target=name or type(policy).__name__,
        policy=type(policy).__name__,
        adapter=audit.as_made.kind,
        env=audit.spec.name,
        seed=seed,
        parameters=sum(p.numel() for p in policy.parameters()),
        results=tuple(results),
    )


def _prepared(make: Callable[..., nn.Module], env: object, seed: int, adapter: str, takes_options: bool) -> Audit:
    """Whatever goes wrong before the first check means that there is nothing to check."""
    try:
        return Audit(make, spec_of(env), seed, adapter, takes_options)
    except UserError:
        raise
    except Exception as error:
        raise CannotAuditError(f"it cannot be audited: {describe(error)}") from error


def check(policy: Any, env: object, *, seed: int = 0, only: Sequence[str] = (), adapter: str = "auto") -> Report:
    """Audit a policy, or what makes one; raises `AuditError`, with the readable report, if anything is wrong.

    The policy itself is left as it is: copies of it are played.
    """
    make, takes_options = _maker(policy, env)
    report = run_audit(make, env, seed=seed, only=only, adapter=adapter, takes_options=takes_options)
    if not report.passed:
        raise AuditError(as_text(report), report)
    return report


def assert_memory_is_right(policy: Any, env: object, **options: Any) -> None:
    """For tests: `check`, under a name that reads well in one."""
    check(policy, env, **options)


def cheap_checks(policy: Any, env: object, *, seed: int = 0) -> list[CheckResult]:
    """The checks worth repeating while a policy is trained: on a copy, in about a second."""
    make, _ = _maker(policy, env)
    return list(run_audit(make, env, seed=seed, only=CHEAP).results)


def chosen(only: Sequence[str]) -> list[Check]:
    """Checks by name; all if none is named."""
    names = [name.strip().replace("-", "_").replace(" ", "_") for name in only if name.strip()]
    for name in names:
        if name not in CHECKS:
            raise UserError(f"--only: there is no check '{name}'{suggestion(name, CHECKS)} ({', '.join(CHECKS)})")
    return [check for name, check in CHECKS.items() if name in names or not names]


def run_check(check: Check, audit: Audit) -> CheckResult:
    """One check; what the policy raises on the way is a failure, and says so."""
    began = time.perf_counter()
    status: Status
    try:
        verdict = _verdict(check, audit)
        status = "pass" if verdict.passed else "fail"
    except DoesNotApplyError as reason:
        verdict, status = Verdict(True, said=str(reason)), "skip"
    except Exception as error:
        verdict, status = Verdict(False, said=f"the policy raised {describe(error)}"), "fail"
    where = place(audit.policy, *check.methods)
    return CheckResult(
        name=check.name,
        question=check.question,
        status=status,
        measured=verdict.measured,
        bound=verdict.bound,
        at_least=verdict.at_least,
        said=verdict.said,
        consequence=check.consequence,
        where=f"{verdict.where}, in {where}" if verdict.where else where,
        fix=_fix(check, verdict, audit.as_made.native),
        notes=verdict.notes,
        evidence=verdict.evidence,
        seconds=time.perf_counter() - began,
    )


def _fix(check: Check, verdict: Verdict, native: bool) -> str:
    if native:
        return verdict.fix or check.fix
    return verdict.elsewhere or check.elsewhere or verdict.fix or check.fix


def _verdict(check: Check, audit: Audit) -> Verdict:
    if check.of_natives and not audit.as_made.native:
        raise DoesNotApplyError(
            f"asked only of policies that are called with a td, and this one is played as '{audit.as_made.kind}'"
        )
    if check.learns and audit.learning_fault:
        raise DoesNotApplyError("learning does not work at all: see modes")
    torch.manual_seed(audit.seed)
    return check.run(audit)


def _maker(policy: Any, env: object) -> tuple[Callable[..., nn.Module], bool]:
    """How to get the policy, and whether keyword arguments are its options."""
    spec = spec_of(env)
    if isinstance(policy, type) and issubclass(policy, Policy):
        return partial(policy, spec), True
    if isinstance(policy, type):
        return partial(build, policy, policy.__name__, spec, {}), False
    if not isinstance(policy, nn.Module) and isinstance(getattr(policy, "policy", None), nn.Module):
        policy = policy.policy  # an algorithm with the policy in it
    if not isinstance(policy, nn.Module) and callable(policy):
        return policy, False
    return lambda: copy_of(policy, policy), False
