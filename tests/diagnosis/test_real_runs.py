"""Small runs that really have a fault, and runs that learn, diagnosed by training itself and from their files."""

import json
from pathlib import Path

import pytest
from support import faulty_worlds, running

from engram.diagnosis import Diagnosis
from engram.runs.report import read_report_run

PHASES = ("environment", "inference", "learning")
CORRIDOR = f"env={Path(faulty_worlds.__file__).resolve()}:Corridor"
LARGE = ("trainer.batch_size=960", "trainer.minibatch_size=480")  # ten times as many steps in an epoch
FOUR = ("trainer.update_epochs=4",)  # passes: twice as many as in other small runs
FAULTS = {
    "zero": ("No reward ever seen", 20, [CORRIDOR, "env.kwargs.fault=no reward"]),
    "alike": ("Advantages all alike", 20, [CORRIDOR, "env.kwargs.fault=same return"]),
    "constant": ("Observations never change", 20, [CORRIDOR, "env.kwargs.fault=observation is constant"]),
    "huge": ("Observations are huge", 40, [CORRIDOR, "env.kwargs.fault=observation is huge"]),
    "endless": ("No episode ever ended", 110, [CORRIDOR, "env.kwargs.fault=never ends", *LARGE]),
    "myopic": (
        "The discount hides later rewards",
        40,
        [CORRIDOR, "env.kwargs.fault=pays for the wrong way", "trainer.ppo.gamma=0"],
    ),
    "fast": ("Learning rate too high", 20, ["trainer.optimizer.learning_rate=5"]),
    "still": ("Learning rate near 0", 20, ["trainer.optimizer.learning_rate=1e-9"]),
    "damped": ("The policy does not move", 20, ["trainer.optimizer.eps=1e6"]),
    "ended": (
        "Learning rate near 0",
        60,
        ["env.delay=6", "trainer.schedule.optimizer.learning_rate={kind:linear,to:0,until:0.02}"],
    ),
    "clipped": ("Every update is clipped", 20, ["trainer.ppo.clip_coef=1e-6"]),
    "random": ("The entropy bonus outweighs the reward", 20, ["trainer.ppo.ent_coef=10"]),
    "short": ("bptt_horizon is shorter than the delay", 30, ["env.delay=20", "trainer.optimizer.learning_rate=0.002"]),
    "warming": (
        "Memory is not used",
        120,
        [
            "env.delay=6",
            "trainer.bptt_horizon=16",
            "trainer.burn_in=14",
            "trainer.optimizer.learning_rate=0.002",
            *FOUR,
        ],
    ),
    "noise": ("Values explain nothing", 40, [CORRIDOR, "env.kwargs.fault=noise"]),
    "drift": ("Learned, then lost", 110, [CORRIDOR, "env.kwargs.fault=drifts"]),
    "collapse": (
        "Entropy collapsed",
        80,
        [CORRIDOR, "env.kwargs.fault=noise", "trainer.ppo.ent_coef=0", "trainer.optimizer.learning_rate=0.0029", *FOUR],
    ),
}


def diagnosis_of(directory: Path, name: str, epochs: int, words: list[str]) -> tuple[Diagnosis, list[str]]:
    display = running.Silent()
    result = running.run(directory, *words, name=name, epochs=epochs, display=display)
    stored = read_report_run(directory / name).diagnosis
    assert result.diagnosis == stored  # the same from the files as from the run itself
    return stored, display.messages


@pytest.mark.parametrize("name", FAULTS)
def test_a_run_with_a_fault_is_told_which(name, tmp_path):
    expected, epochs, words = FAULTS[name]
    diagnosis, _ = diagnosis_of(tmp_path, name, epochs, words)
    assert expected in [finding.name for finding in diagnosis.findings], diagnosis


def test_an_action_that_is_never_allowed_is_mentioned(tmp_path):
    diagnosis, _ = diagnosis_of(tmp_path, "masked", 20, [CORRIDOR, "env.kwargs.fault=right is masked"])
    (finding,) = diagnosis.findings
    assert finding.name == "No reward ever seen"
    assert "forbids at least 1 action in every sampled step" in finding.advice


def test_a_fault_is_told_once_while_the_run_trains(tmp_path):
    _, messages = diagnosis_of(tmp_path, "zero", 20, [CORRIDOR, "env.kwargs.fault=no reward"])
    assert len([message for message in messages if message.startswith("No reward ever seen: all ")]) == 1


def test_an_environment_that_takes_most_of_the_time_is_told(tmp_path):
    words = [CORRIDOR, "env.kwargs.fault=slow", "trainer.batch_size=48"]
    diagnosis, _ = diagnosis_of(tmp_path, "slow", 2, words)
    records = [json.loads(line) for line in (tmp_path / "slow" / "metrics.jsonl").read_text().splitlines()][2:]
    phases = [sum(record[f"time/{phase}_seconds"] for record in records) for phase in PHASES]
    slow = phases[0] >= 0.8 * sum(phases)  # true, unless other programs slow down all that does not sleep
    assert [finding.name for finding in diagnosis.findings] == ["The environment is the bottleneck"] * slow


@pytest.mark.parametrize(
    ("epochs", "words"),
    [
        (60, [CORRIDOR, "trainer.optimizer.learning_rate=0.003"]),
        (60, [CORRIDOR, "env.kwargs.fault=sign is flipped", "trainer.optimizer.learning_rate=0.003"]),
        (80, ["env.delay=1", "trainer.optimizer.learning_rate=0.003"]),
    ],
)
def test_a_run_that_learns_gets_no_alarm(epochs, words, tmp_path):
    diagnosis, messages = diagnosis_of(tmp_path, "healthy", epochs, words)
    assert (diagnosis.verdict, messages) == ("healthy", []), diagnosis


def test_a_fault_without_a_rule_is_unknown_not_misnamed(tmp_path):
    diagnosis, _ = diagnosis_of(tmp_path, "ignored", 40, [CORRIDOR, "env.kwargs.fault=actions are ignored"])
    assert (diagnosis.verdict, diagnosis.findings) == ("unknown", [])
