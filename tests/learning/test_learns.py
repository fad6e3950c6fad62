"""Training that really learns to remember, on tasks small enough for a test."""

import json
from pathlib import Path

import pytest
from support.running import Silent

from engram.config.load import load
from engram.config.run_directory import prepare_directory
from engram.training.run import start
from engram.training.state import HookResult


def best_return(directory: Path, *words: str, enough: float = 0.8) -> float:
    """The best mean over recent episodes. A run that has learned enough ends."""
    settings = load([*words, f"runs_dir={directory}", "run=x", "trainer.num_workers=0"])
    prepare_directory(settings)
    start(settings, Silent(), on_epoch=lambda record: HookResult(stop=(record["return"] or 0.0) > enough))
    records = [json.loads(line) for line in (directory / "x" / "metrics.jsonl").read_text().splitlines()]
    assert max(record["memory/replay_error"] for record in records) < 1e-5
    return max(record["return"] for record in records if record["return"] is not None)


RECALL = (
    "env=recall",
    "env.cues=2",
    "env.delay=2",
    "env.delay_jitter=1",
    "env.truncate=0.02",
    "py_agent.hidden_size=32",
    "py_agent.num_layers=1",
    "trainer.bptt_horizon=16",
    "trainer.num_envs=128",
    "trainer.batch_size=2048",
    "trainer.minibatch_size=256",
    "trainer.optimizer.learning_rate=0.003",
    "trainer.optimizer.eps=1e-5",  # with a tiny one, steps stay large when gradients vanish
    "trainer.total_timesteps=50000",
)


@pytest.mark.slow
@pytest.mark.parametrize("core", ["lstm", "gru", "mingru"])
def test_every_core_learns_to_recall_a_cue(tmp_path, core: str) -> None:
    assert best_return(tmp_path, *RECALL, f"py_agent.core={core}") > 0.8  # 0.5 without memory


@pytest.mark.slow
def test_the_same_network_without_memory_does_not(tmp_path) -> None:
    enough = "trainer.total_timesteps=20_000"  # with memory, less than that suffices
    assert best_return(tmp_path, *RECALL, enough, "trainer.memory=off") < 0.6


@pytest.mark.slow
def test_memory_that_begins_anew_with_every_rollout_learns_too(tmp_path) -> None:
    assert best_return(tmp_path, *RECALL, "trainer.memory=reset") > 0.8
