"""The printed evaluation."""

import io
from typing import Any

import pytest
from rich.console import Console

from engram.display.evaluation import show, verdict


def estimate(mean: float, reach: float | None = 0.1) -> dict[str, float | None]:
    ends = (None, None) if reach is None else (mean - reach, mean + reach)
    return {"mean": mean, "low": ends[0], "high": ends[1], "std": reach}


def result(**changes: Any) -> dict[str, Any]:
    plain = {"run": "mine", "env": "maze", "episodes": 50, "greedy": False, "memory": "carry", "steps": 1234567}
    plain |= {"checkpoint": "runs/mine/checkpoints/best", "masked_features": []}
    figures = {"return": estimate(0.9), "length": estimate(12.0), "stats": {"goals": estimate(2.0, None)}}
    agents = [{"agent": 0, "return": estimate(0.9), "length": estimate(12.0)}]
    return {**plain, **figures, "agents": agents, "memoryless_ceiling": 0.45, "mean_return_goal": 1.0, **changes}


def shown(**changes: Any) -> str:
    stream = io.StringIO()
    show(result(**changes), Console(file=stream, width=120))
    return stream.getvalue()


def row(output: str, name: str) -> list[str]:
    line = next(line for line in output.splitlines() if line.startswith(f"{name} "))
    return line.removeprefix(name).split()


def test_means_are_in_a_table_with_their_intervals():
    output = shown()
    assert "mine on maze, 50 episodes, sampled actions, after 1,234,567 steps (runs/mine/checkpoints/best)" in output
    assert row(output, "return") == ["0.900", "0.800", "to", "1.00", "0.100"]
    assert row(output, "goals") == ["2.00", "-", "-"]
    assert "agent" not in output


def test_several_agents_have_a_row_each():
    agents = [{"agent": i, "return": estimate(float(i)) if i else None, "length": None} for i in range(3)]
    output = shown(agents=agents, greedy=True, memory="off")
    assert row(output, "return of agent 2")[0] == "2.00"
    assert row(output, "return of agent 0") == ["-", "-", "-"]
    assert "most likely actions, without memory" in output


def test_masked_features_are_named():
    assert "Masked features, unknown to the policy: ore, heart." in shown(masked_features=["ore", "heart"])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "Return 0.90: above what any policy without memory can reach (0.45). The best possible is 1.00."),
        ({"return": estimate(0.5)}, "Return 0.50: above what a policy without memory can reach (0.45), but that may"),
        ({"return": estimate(0.9, None)}, "but that may be luck."),
        ({"return": estimate(1.0, 0.0), "episodes": 3}, "but that may be luck."),
        ({"return": estimate(0.4)}, "Return 0.40: not above what a policy without memory can reach (0.45)."),
        ({"memoryless_ceiling": None, "mean_return_goal": None}, "Return 0.90."),
    ],
)
def test_the_verdict_claims_no_more_than_the_interval_shows(changes, expected):
    assert expected in verdict(result(**changes))
