"""Small whole runs, on the recall task unless a different environment is given."""

import json
from pathlib import Path
from typing import Any

from engram.config.load import load
from engram.config.run_directory import prepare_directory
from engram.env.registry import make_spec as make_spec
from engram.training.run import RunResult, start

BATCH = 96
RECALL = ("env=recall", "env.delay=2")
SMALL = (
    "py_agent.hidden_size=8",
    "trainer.num_envs=6",
    "trainer.bptt_horizon=8",
    f"trainer.batch_size={BATCH}",
    "trainer.minibatch_size=48",
    "trainer.update_epochs=2",
    "trainer.num_workers=0",
    "trainer.checkpoint.interval=1",
    "trainer.ppo.ent_coef=0.01",
    # Metrics must not depend on total_timesteps.
    "trainer.schedule.optimizer.learning_rate.kind=constant",
    "trainer.norm_obs=false",
)


class Silent:
    """A display that only records its messages."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def building(self, run: str, what: str) -> None: ...

    def start(self, plan: Any) -> None: ...

    def update(self, record: Any) -> None: ...

    def message(self, text: str) -> None:
        self.messages.append(text)

    def finish(self, result: Any) -> None: ...


class InterruptAfter(Silent):
    """Interrupts the run after an epoch was written, as Ctrl-C does; None: never."""

    def __init__(self, epoch: int | None) -> None:
        super().__init__()
        self.epoch = epoch

    def update(self, record: Any) -> None:
        if record["epoch"] == self.epoch:
            raise KeyboardInterrupt


def run(directory: Path, *words: str, name: str = "x", epochs: int = 3, display: Silent | None = None) -> RunResult:
    steps = f"trainer.total_timesteps={epochs * BATCH}"
    env = () if any(word.startswith("env=") for word in words) else RECALL
    settings = load([*env, *SMALL, steps, *words, f"run={name}", f"runs_dir={directory}"])
    prepare_directory(settings)
    return start(settings, display or Silent())


def metrics(directory: Path, name: str = "x") -> list[dict[str, Any]]:
    """The records without timings and evaluations, which may differ between two equal runs."""
    lines = (directory / name / "metrics.jsonl").read_text().splitlines()
    other = ("time/", "process/", "evaluate/")
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(other)} for line in lines]


def log(directory: Path, name: str = "x") -> str:
    return (directory / name / "log.txt").read_text()
