"""A diagnosis as lines of text."""

import textwrap
from collections.abc import Sequence

from engram.diagnosis.finding import Diagnosis, Finding

WIDTH = 100


def diagnosis_lines(diagnosis: Diagnosis, extra: Sequence[str] = ()) -> list[str]:
    """The summary, or the findings; `extra` is further evidence."""
    lines = [] if diagnosis.findings else _wrap(diagnosis.summary, "")
    for finding in diagnosis.findings:
        lines += [*([""] if lines else []), *finding_lines(finding)]
    for sentence in extra:
        lines += _wrap(sentence, "")
    return lines


def finding_lines(finding: Finding) -> list[str]:
    parts = {"seen": finding.evidence, "means": finding.meaning, "try": finding.advice}
    return [finding.name, *(line for label, text in parts.items() for line in _wrap(text, f"  {label:<7}"))]


def _wrap(text: str, start: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=" " * len(start), break_long_words=False)
