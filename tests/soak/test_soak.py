"""`engram soak`: a short one, and what it would say of promises that break."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from support import running
from support.two_ranks import ROOT, environment

from engram.soak.environment import CUES, FAILURE_FILE, RAISE, Cue, CueError
from engram.soak.faults import EXACT, RESTARTS, Disk
from engram.soak.report import Injection, Report, memory_slope
from engram.soak.soak import Plan, soak
from engram.soak.trial import Trial, difference
from engram.training.checkpoint.files import load_checkpoint, save_checkpoint


@pytest.mark.slow
def test_a_short_soak_breaks_no_promise(tmp_path: Path) -> None:
    words = ["soak", "--minutes", "0", "--epochs", "20", "--seed", "5", "--json"]
    ended = subprocess.run(
        [sys.executable, "-m", "engram", *words], env=environment(), cwd=ROOT, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(ended.stdout)
    assert found["injected"] == found["survived"]
    assert all(each["faults"] for each in found["rounds"])
    assert [(each["kind"], each["difference"]) for each in found["rounds"]] == [("exact", None), ("restarts", None)]
    assert found["orphans"] == 0
    assert found["broken"] == []


def fake_training(code: int, leaves: str | None = None):
    """A command line that ends at once, in the place of `engram train`."""

    def command(words) -> int:
        if leaves:
            subprocess.Popen([sys.executable, "-c", leaves], process_group=0)
        return code

    return command


def test_an_undisturbed_run_that_fails_is_a_broken_promise(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("engram.soak.soak._Soak._round", lambda self, *_: self.report.rounds.append(None))
    report = soak(Plan(0, 1, 1, tmp_path / "x"), fake_training(3), print)
    assert report.all_broken_promises() == ["an undisturbed run ended with code 3: no output"] * 2


class CatchingUp:
    """A run whose metrics are written again only some time after the disk has room."""

    def __init__(self) -> None:
        self.pid, self.lines, self.checks = 0, 3, 0

    def epochs(self) -> list[int]:
        return [0] * self.lines

    def wait(self, seconds: float) -> None:
        self.checks += 1
        if self.checks == 5:
            self.lines = 20


def test_after_a_full_disk_the_next_fault_waits_for_the_metrics(monkeypatch) -> None:
    monkeypatch.setattr("engram.soak.faults.FULL_SECONDS", (0, 0))
    trial = CatchingUp()
    EXACT["full disk"].inject(trial, SimpleNamespace(fill=id, free=id), Random(1))  # type: ignore[arg-type]
    assert trial.lines == 20


def test_processes_that_a_run_leaves_behind_are_found_and_ended(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("engram.soak.trial.ORPHAN_SECONDS", 0.3)
    with Trial(tmp_path, [], fake_training(0, "import time; time.sleep(60)")) as trial:
        trial.start()
        assert trial.wait(30) == 0
        assert trial.end_orphans() == 1
        assert trial.end_orphans() == 0


def test_runs_that_differ_in_one_bit_or_one_metric_are_told_apart(tmp_path: Path) -> None:
    for name in ("whole", "pieces"):
        running.run(tmp_path / name, epochs=1)
    whole, pieces = tmp_path / "whole" / "x", tmp_path / "pieces" / "x"
    assert difference(whole, pieces) is None
    checkpoint = load_checkpoint(pieces / "checkpoints" / "epoch_000001")
    name, tensor = next(iter(checkpoint.groups["optimizer"].items()))
    tensor.view(-1)[0] += 1
    save_checkpoint(pieces / "checkpoints", 1, checkpoint.groups, checkpoint.state)
    assert difference(whole, pieces) == f"optimizer.{name} of the latest checkpoint differs"
    record = json.loads((pieces / "metrics.jsonl").read_text())
    (pieces / "metrics.jsonl").write_text(json.dumps({**record, "loss/value": -7.5}) + "\n")
    assert difference(whole, pieces) == "epoch 1: loss/value of metrics.jsonl differ"


def test_an_unsurvived_fault_is_counted(tmp_path: Path) -> None:
    report = Report([Injection(1, "kill", 0.1, 3, -9, 512, None), Injection(1, "kill", 0.1, 3, 7, 0, "exit code 7")])
    assert report.by_fault() == {"kill": {"injected": 2, "survived": 1, "steps_lost": 512}}


def test_the_environment_fails_once_when_asked_to(tmp_path: Path, monkeypatch) -> None:
    failure = tmp_path / "failure"
    monkeypatch.setenv(FAILURE_FILE, str(failure))
    env = Cue()
    cue = int(env.reset(seed=1)[0].argmax())
    failure.write_text(RAISE)
    with pytest.raises(CueError):
        env.step(0)
    env.reset(seed=1)
    steps = [env.step(cue) for _ in range(4)]
    assert [step[1] for step in steps] == [0, 0, 0, 1]
    assert steps[2][0].argmax() == CUES  # the query


@pytest.mark.parametrize("leak", [0, 1000])
def test_the_slope_of_memory_has_an_interval_that_holds_the_true_one_in_95_of_100_cases(leak: int) -> None:
    filling = np.concatenate([np.linspace(0, 5e7, 500), np.full(1500, 5e7)])  # caches fill at first
    held = 0
    for seed in range(200):
        noise = np.random.default_rng(seed).normal(0, 2000, 2000)
        slope = memory_slope(((filling + noise + 4 * leak * np.arange(2000)) / 2**20).tolist(), 4)
        assert slope is not None
        assert slope.grows == (leak > 200)
        held += slope.low < leak < slope.high
    assert 180 <= held <= 198
    assert memory_slope([1.0] * 10, 4) is None


def test_a_full_disk_refuses_to_write_until_it_is_freed(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "disk")
    try:
        if not disk.mounted:
            pytest.skip("only root can mount a file system")
        disk.fill(os.getpid())
        with pytest.raises(OSError, match="No space"):
            (disk.path / "x").write_bytes(bytes(10_000))
        disk.free(os.getpid())
        (disk.path / "x").write_bytes(bytes(10_000))
    finally:
        disk.close()


def test_every_fault_has_a_name_of_its_own() -> None:
    assert not EXACT.keys() & RESTARTS.keys()
    assert EXACT["kill"].code == -signal.SIGKILL
    assert {fault.code for fault in RESTARTS.values()} == {None}
