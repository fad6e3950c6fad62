"""`make bench`: races against other systems and plots, and the verbs of `engram bench`."""

import json

import pytest

from bench.__main__ import main


def test_help_lists_all_verbs(capsys) -> None:
    assert main([]) == 0
    printed = capsys.readouterr().out
    for verb in ("core", "scale", "learn", "peers", "solve", "story", "learning", "plot"):
        assert f"  {verb}" in printed


def test_verbs_of_engram_bench_are_passed_on(capsys) -> None:
    sizes = ["--rounds", "1", "--seconds", "0", "--threads", "1", "--rows", "2", "--steps", "2", "--hidden", "4"]
    assert main(["core", *sizes, "--json", "--no-write"]) == 0
    assert json.loads(capsys.readouterr().out)["verb"] == "core"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["peers", "--peers", "rl_game"], "unknown name 'rl_game'; did you mean rl_games?"),
        (["peers", "--tasks", "pole"], "unknown name 'pole'"),
        (["cor"], "unknown benchmark 'cor'; did you mean core?"),
    ],
)
def test_a_mistake_fails_with_a_suggestion(words, message, capsys) -> None:
    assert main(words) == 2
    assert message in capsys.readouterr().err
