"""What a check finds, and what an audit has found."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from engram.settings import UserError

if TYPE_CHECKING:
    from engram.audit.context import Audit

Status = Literal["pass", "fail", "skip"]


@dataclass(frozen=True)
class Verdict:
    """What the function of a check returns."""

    passed: bool
    measured: float | None = None
    bound: float | None = None
    said: str = ""  # what was measured, and if it is wrong: what exactly, and where in the data
    at_least: bool = False  # the bound is the least that is right, not the most
    fix: str = ""  # in place of the check's own, where more is known
    elsewhere: str = ""  # and for policies that are not built on what Engram has
    where: str = ""
    notes: tuple[str, ...] = ()  # worth knowing, and no failure
    evidence: Mapping[str, Tensor] = field(default_factory=dict)  # for pictures


class DoesNotApplyError(Exception):
    """Raised by a check that does not apply; the text says why."""


@dataclass(frozen=True)
class Check:
    """One question about a policy: what to ask, and what to tell whoever must put it right."""

    name: str
    question: str
    consequence: str  # what a failure does to training
    fix: str
    methods: tuple[str, ...]  # where such a thing is usually wrong, most likely first
    run: Callable[["Audit"], Verdict]
    elsewhere: str = ""  # the fix, for policies that are not built on what Engram has
    of_natives: bool = False  # asked only of policies that are called with a td
    learns: bool = True  # needs learning to work at all


@dataclass(frozen=True)
class CheckResult:
    name: str
    question: str
    status: Status
    measured: float | None
    bound: float | None
    at_least: bool
    said: str
    consequence: str
    where: str
    fix: str
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
            "measured": _number(self.measured),
            "bound": _number(self.bound),
            "bound_is": "at least" if self.at_least else "at most",
            "said": self.said,
            "consequence": self.consequence,
            "where": self.where,
            "fix": self.fix,
            "notes": list(self.notes),
            "evidence": {name: _plain(tensor.tolist()) for name, tensor in self.evidence.items()},
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True)
class Report:
    """All results of one target."""

    target: str
    policy: str  # its class
    adapter: str
    env: str
    seed: int
    parameters: int
    results: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        return all(result.passed for result in self.results)

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        return tuple(result for result in self.results if not result.passed)

    @property
    def seconds(self) -> float:
        return sum(result.seconds for result in self.results)

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "policy": self.policy,
            "adapter": self.adapter,
            "env": self.env,
            "seed": self.seed,
            "parameters": self.parameters,
            "passed": self.passed,
            "checks": [result.to_json() for result in self.results],
        }


class CannotAuditError(UserError):
    """A target that is no policy, or cannot be built or called: exit code 2."""


class AuditError(AssertionError):
    """Raised by `check` when a policy fails; the text is the report."""

    def __init__(self, text: str, report: Report) -> None:
        super().__init__(text)
        self.report = report


def _number(value: float | None) -> float | str | None:
    """JSON has no infinity and no NaN."""
    if value is None or value - value == 0:
        return value
    return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return _number(value)
