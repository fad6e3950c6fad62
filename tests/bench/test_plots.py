"""Plots of results."""

import json
import sys
from pathlib import Path

import pytest

from bench.plots import main
from engram.settings import UserError


def entry(name: str, rate: float, best: bool = True) -> dict:
    return {"name": name, "rate": rate, "best": best, "phases": {"environment": 0.25, "learning": 0.5}}


RACES = {
    "machine": {"cpu": "a <cpu>", "cores": 2, "torch": "2.13"},
    "date": "2026-05-01T12:00:00+00:00",
    "races": [
        {"name": "a & b", "baseline": "engram", "entries": [entry("slow", 500), entry("engram", 2000)]},
        {"name": "not measured", "baseline": "engram", "entries": [entry("engram", 0, best=False)]},
    ],
}
RUNS = {"runs": [{"task": "tmaze", "steps": 20, "curve": [[10, 0.1], [20, 0.9]]}] * 2}


def plot(tmp_path: Path, *results: dict) -> str:
    pytest.importorskip("matplotlib")
    sources, target = [], tmp_path / "images" / "plot.svg"
    for number, result in enumerate(results):
        sources.append(tmp_path / f"{number}.json")
        sources[-1].write_text(json.dumps(result))
    assert main([*map(str, sources), str(target)]) == 0
    return target.read_text()


def test_a_race_is_plotted_with_names_speeds_and_machine(tmp_path) -> None:
    svg = plot(tmp_path, RACES)
    texts = ("a &amp; b", "engram", "slow", "50.0 s, 2,000 steps/s", "200.0 s, 500 steps/s", "a &lt;cpu&gt;, 2 cores")
    assert all(text in svg for text in texts)
    assert "not measured" not in svg


def test_several_results_are_plotted_together(tmp_path) -> None:
    assert plot(tmp_path, RACES, RACES).count(">a &amp; b") == 2


def test_runs_are_plotted_as_learning_curves(tmp_path) -> None:
    svg = plot(tmp_path, RUNS)
    assert svg.count(">tmaze<") == 1
    assert "20 steps" in svg


def test_without_matplotlib_the_message_says_how_to_install_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    source = tmp_path / "result.json"
    source.write_text(json.dumps(RACES))
    with pytest.raises(UserError, match=r"\[plot\]"):
        main([str(source), str(tmp_path / "plot.svg")])
