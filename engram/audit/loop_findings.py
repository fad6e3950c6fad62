"""Faults of a training loop, summarised over all its calls: shifted or inverted starts, zeroed states."""

from collections import Counter
from collections.abc import Collection

ENDS = ("termination", "truncation")
NOT_CLEARED = "memory is not cleared when an episode starts"
ZERO_INSIDE = "the state is not carried from step to step: it is zero inside an episode"
MOVES_TWICE = "memory moves on twice for one observation: the state of a second call with it is carried on"
NEXT_OBSERVATION = "each observation is learned with the start and the state of the step before: it is stored too late"
SHOWN = 4  # steps that are listed


def misplaced_starts(flags: list[bool], starts: list[bool]) -> str:
    """The fault of a sequence in which all flags are shifted by one step, or inverted; otherwise empty."""
    if flags == starts or len(flags) < 3:
        return ""
    if flags[1:] == [not start for start in starts[1:]]:
        return "masks are given in place of episode starts: they are inverted, 1 - starts"
    if flags[:-1] == starts[1:] and any(starts[1:]):
        return "each episode start is given one step too early"
    if flags[1:] == starts[:-1] and any(starts[:-1]):
        return "each episode start is given one step too late"
    return ""


def in_few_words(problems: Counter[str], zeroed: set[int], started: Collection[int], played: int) -> Counter[str]:
    """The problems of a question, with cases of the same fault merged into one text.

    `zeroed`: the steps at which a row acts from zero inside an episode. `started`: those at which a row starts one.
    """
    problems = problems.copy()
    kinds = [text for text in problems if text.startswith(NOT_CLEARED)]
    if len({text.rpartition(" ")[2] for text in kinds} & set(ENDS)) == len(ENDS):
        problems[NOT_CLEARED] = sum(problems.pop(text) for text in kinds)
    if ZERO_INSIDE not in problems:
        return problems
    if zeroed <= set(started) and len(zeroed) >= len(started) / 2:
        text = "the states of all rows are zeroed where one of them starts an episode"
    elif len(zeroed) < played / 2:
        steps = ", ".join(map(str, sorted(zeroed)[:SHOWN])) + ", …" * (len(zeroed) > SHOWN)
        text = f"the state is zeroed inside episodes at steps {steps}, as by a reset before every rollout"
    else:
        return problems
    problems[text] = problems.pop(ZERO_INSIDE)
    return problems
