"""Runs killed with signal 9 resume as if nothing had happened: a few cases of tests/support/killing.py."""

import json
import subprocess
import sys

from support.two_ranks import ROOT, TIMEOUT, environment


def test_a_killed_run_ends_like_an_uninterrupted_one(tmp_path) -> None:
    environments = ("recall", "cartpole, velocities masked", "mettagrid tmaze")
    result = tmp_path / "result.json"
    command = ["tests/support/killing.py", "--epochs", "5", "--kills", "2", "--writing", "1", "--out", str(result)]
    ended = subprocess.run(
        [sys.executable, *command, "--environments", *environments],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(result.read_text())
    assert found["kills"] == 9
    assert found["while writing a checkpoint"] >= 1
