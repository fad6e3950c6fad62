"""Results of checks, and the report of an audit."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from engram.audit.root_cause import RootCause, root_causes
from engram.settings import UserError

if TYPE_CHECKING:
    from engram.audit.context import AuditContext

Status = Literal["pass", "fail", "skip"]


@dataclass(frozen=True)
class Verdict:
    """The outcome of a check's function."""

    passed: bool
    measured: float | None = None
    bound: float | None = None
    finding: str = ""  # what was measured; for a failure: what is wrong, and where in the data
    at_least: bool = False  # the bound is a minimum
    cause: str = ""  # of a failure: the mechanism in one clause, where it is known
    fix: str = ""  # replaces the fix of the check, if a better one is known
    fix_without_engram: str = ""  # the same for policies that do not build on Engram
    where: str = ""  # the module or tensor with the fault, if known; the report adds the source location
    notes: tuple[str, ...] = ()  # observations that are no failure
    evidence: Mapping[str, Tensor] = field(default_factory=dict)  # for figures


class DoesNotApplyError(Exception):
    """Raised by a check that does not apply; the text says why."""


@dataclass(frozen=True)
class Check:
    """One question about a policy, with the explanation of a failure."""

    name: str
    question: str
    effect: str  # what a failure does to training
    fix: str
    methods: tuple[str, ...]  # where the fault usually is, most likely first
    run: Callable[["AuditContext"], Verdict]
    fix_without_engram: str = ""  # for policies that do not build on Engram
    td_only: bool = False  # only for policies that are called with a td
    needs_learning: bool = True  # skipped when learning raises an error


@dataclass(frozen=True)
class CheckResult:
    name: str
    question: str
    status: Status
    measured: float | None
    bound: float | None
    at_least: bool
    finding: str
    effect: str
    where: str
    fix: str
    cause: str = ""
    notes: tuple[str, ...] = ()
    evidence: Mapping[str, Tensor] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return self.status != "fail"

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "question": self.question,
            "status": self.status,
            "measured": _json_number(self.measured),
            "bound": _json_number(self.bound),
            "bound_is": "at least" if self.at_least else "at most",
            "finding": self.finding,
            "cause": self.cause,
            "effect": self.effect,
            "where": self.where,
            "fix": self.fix,
            "notes": list(self.notes),
            "evidence": {name: _json_numbers(tensor.tolist()) for name, tensor in self.evidence.items()},
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True)
class AuditReport:
    """All results for one target."""

    target: str
    policy: str  # its class
    adapter: str
    env: str
    seed: int
    parameters: int
    results: tuple[CheckResult, ...]
    assumed_loop: str = ""  # how the training loop around the policy is assumed to handle memory

    @property
    def passed(self) -> bool:
        return all(result.passed for result in self.results)

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        return tuple(result for result in self.results if not result.passed)

    @property
    def seconds(self) -> float:
        return sum(result.seconds for result in self.results)

    @property
    def causes(self) -> list[RootCause]:
        """Failed checks, each as a probable root cause or as the consequence of one."""
        return root_causes(self.results)

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "policy": self.policy,
            "adapter": self.adapter,
            "assumed_loop": self.assumed_loop,
            "env": self.env,
            "seed": self.seed,
            "parameters": self.parameters,
            "passed": self.passed,
            "causes": [
                {
                    "root": cause.root.name,
                    "cause": cause.sentence,
                    "consequences": [result.name for result in cause.consequences],
                }
                for cause in self.causes
            ],
            "checks": [result.to_json() for result in self.results],
        }


def attempt(experiment: Callable[..., str], *arguments: Any) -> str:
    """The cause of a failure, as an experiment finds it; empty if the policy raises an error during the experiment."""
    try:
        return experiment(*arguments)
    except Exception:
        return ""


class CannotAuditError(UserError):
    """The target is no policy, or cannot be built or called: exit code 2."""


class AuditError(AssertionError):
    """Raised by `check` when a policy fails; the text is the report."""

    def __init__(self, text: str, report: AuditReport) -> None:
        super().__init__(text)
        self.report = report


def _json_number(value: float | None) -> float | str | None:
    """JSON has no infinity and no NaN."""
    if value is None or math.isfinite(value):
        return value
    return str(value)


def _json_numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_json_numbers(part) for part in value]
    return _json_number(value)
