"""The picture of the terminal in the README is drawn from a real run."""

import runpy
from pathlib import Path

from engram.cli.main import main

DRAW = Path(__file__).resolve().parents[2] / "docs" / "picture.py"


def test_a_run_can_be_drawn(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["run=drawn", "env=recall", "trainer.num_envs=4", "trainer.bptt_horizon=8", "trainer.total_timesteps=64"]
    assert main(["train", *words]) == 0
    runpy.run_path(str(DRAW))["main"](Path("runs/drawn"), Path("picture.svg"))
    assert "drawn" in Path("picture.svg").read_text(encoding="utf-8")
