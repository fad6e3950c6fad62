"""The summary at the end of a run."""

from dataclasses import replace

import pytest

from engram.display.summary import offer, summary, verdict


@pytest.mark.parametrize(
    ("mean_return", "expected"),
    [
        (0.93, "Return 0.93: above what any policy without memory can reach (0.45)."),
        (0.47, "Return 0.47: hardly above what a policy without memory can reach (0.45), which may be luck."),
        (0.45, "Return 0.45: not yet above what a policy without memory can reach (0.45)."),
        (-1.0, "Return -1.00: not yet above what a policy without memory can reach (0.45)."),
    ],
)
def test_the_verdict_compares_the_return_with_the_memoryless_ceiling(spec, mean_return, expected):
    assert verdict(mean_return, spec) == f"{expected} The best possible is 1.00."


def test_without_a_ceiling_the_verdict_is_only_the_return(spec):
    assert verdict(195.0, replace(spec, memoryless_ceiling=None, mean_return_goal=None)) == "Return 195.0."


def test_without_an_episode_there_is_no_return(spec):
    assert verdict(None, spec).startswith("No episode has ended yet")


def test_a_run_that_was_complete_before_expected_so(result):
    assert (
        summary(result(), trained=False)[0] == "Nothing left to train: all 1,003,520 steps of first were done before."
    )


def test_a_run_without_a_checkpoint_names_none(result):
    assert not any("Checkpoint" in line for line in summary(result(checkpoint=None), trained=True))


def test_no_commands_give_no_lines():
    assert offer([]) == []
