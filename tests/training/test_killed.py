"""Runs killed with signal 9 resume as if nothing had happened: a few cases of tests/support/killing.py."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.dying import PHASES
from support.two_ranks import ROOT, TIMEOUT, environment


def kill(out: Path, environments: Sequence[str], kills: int, phase: int) -> dict[str, Any]:
    numbers = ["--epochs", "5", "--kills", str(kills), "--writing", "1", "--phase", str(phase)]
    ended = subprocess.run(
        [sys.executable, "tests/support/killing.py", *numbers, "--out", str(out), "--environments", *environments],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(out.read_text())


def test_a_killed_run_ends_like_an_uninterrupted_one(tmp_path) -> None:
    found = kill(tmp_path / "result.json", ("cartpole, velocities masked", "mettagrid tmaze"), kills=2, phase=0)
    assert found["kills"] == 6
    assert found["while writing a checkpoint"] >= 1


def test_a_run_killed_in_start_up_evaluation_retention_or_at_its_end_does_too(tmp_path) -> None:
    found = kill(tmp_path / "result.json", ("recall",), kills=0, phase=1)
    assert found["by phase"] == {**dict.fromkeys(PHASES, 1), "writing": 1}
