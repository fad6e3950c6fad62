"""LiveDiagnosis: watches a run while it trains, and reports each fault once, when it has become clear."""

from collections.abc import Mapping
from typing import Any

from engram.diagnosis import environment, rules
from engram.diagnosis.course import Course
from engram.diagnosis.diagnose import BROKEN, CAUSES, Diagnosis, diagnose, has_learned
from engram.diagnosis.finding import Finding
from engram.diagnosis.rules import Rule
from engram.diagnosis.setup import Setup
from engram.stored.metrics import Columns

INTERVAL = 0.05  # of a run, between two checks
# The fraction of a run after which a fault is reported. Other faults may still resolve: they wait for the end.
SINCE: dict[Rule, float] = {
    environment.no_episode_ended: 0.25,
    environment.unchanging_observation: 0.1,
    environment.same_return: 0.25,
    environment.large_observation: 0.25,
    rules.rate_ends_early: 0.25,
    rules.still_policy: 0.25,
    rules.exploding_kl: 0.1,
    rules.clipped_updates: 0.25,
    rules.large_entropy_bonus: 0.5,
    rules.short_sighted: 0.5,
    rules.lost: 0.5,
    rules.collapsed_entropy: 0.5,
    environment.slow_environment: 0.1,
}


class LiveDiagnosis:
    def __init__(self, setup: Setup, earlier: Columns | None = None) -> None:
        """`earlier`: the metrics of the run before it was resumed."""
        self._setup = setup
        self._columns = Columns() if earlier is None else earlier
        self._next = INTERVAL * setup.total_timesteps
        self._reported: set[str] = set()  # names of findings
        self._cause_reported = False  # it explains the other faults

    def add(self, record: Mapping[str, Any]) -> list[Finding]:
        """Add the metrics of an epoch; returns the faults that have become clear."""
        self._columns.add(record)
        steps = record.get("steps", 0)
        if steps < self._next:
            return []
        self._next = steps + INTERVAL * self._setup.total_timesteps
        found = self._check(steps / self._setup.total_timesteps)
        self._reported |= {finding.name for finding in found}
        return found

    def result(self) -> Diagnosis:
        """The diagnosis of the run so far."""
        return diagnose(self._columns, self._setup)

    def _check(self, progress: float) -> list[Finding]:
        course = Course(self._columns)
        learned = has_learned(course, self._setup)
        found: list[Finding] = []
        for rule, since in SINCE.items():
            about_learning = rule not in (*BROKEN, environment.slow_environment)
            if progress < since or (not course.long_enough and rule not in BROKEN):
                continue
            if about_learning and (learned or self._cause_reported):
                continue
            finding = rule(course, self._setup)
            if finding and finding.name not in self._reported:
                self._cause_reported |= rule in (*BROKEN, *CAUSES)
                found.append(finding)
        return found
