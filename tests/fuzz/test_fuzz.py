"""Hostile files are accepted or refused with a message: no traceback, no hang, and no code is run.

A failure names the number of its input; `tests/support/fuzzing.py` runs many more of them.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.fuzzing import FUZZERS, check, check_once

EXAMPLES = {"world": 15, "words": 15, "checkpoint": 40}


@pytest.mark.parametrize("what", FUZZERS)
def test_hostile_input_is_accepted_or_refused(what: str) -> None:
    @settings(
        max_examples=EXAMPLES.get(what, 150),
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(number=st.integers(0, 2**32))
    def inputs(number: int) -> None:
        check(what, number)

    check_once(what, 0)
    inputs()


def test_the_fuzzer_notices_what_it_looks_for(monkeypatch) -> None:
    def crash(_: object) -> None:
        raise KeyError("unexpected")

    monkeypatch.setitem(FUZZERS, "crash", (crash, 1.0))
    with pytest.raises(KeyError):
        check("crash", 0)
