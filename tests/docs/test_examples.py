"""The scripts of examples/ run, with a small budget."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


def test_there_are_six():
    assert len(EXAMPLES) == 6


@pytest.mark.slow
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script), "512"])
    runpy.run_path(str(script), run_name="__main__")
    assert list((tmp_path / "runs").glob("*/checkpoints/epoch_*"))
