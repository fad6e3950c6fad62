"""Diagnosis: why a run does not learn, from its metrics and settings alone: its findings, and the verdict."""

from typing import Any, Literal, NamedTuple

Verdict = Literal["healthy", "faults", "unknown", "early"]


class Finding(NamedTuple):
    name: str
    evidence: str  # in figures
    meaning: str
    advice: str

    @property
    def line(self) -> str:
        return f"{self.name}: {self.evidence}"


class Diagnosis(NamedTuple):
    verdict: Verdict
    summary: str  # one sentence
    findings: list[Finding]

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "findings": [finding._asdict() for finding in self.findings]}
