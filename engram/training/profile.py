"""Profiles one epoch with the torch profiler: a table, and a trace for chrome://tracing or Perfetto."""

import logging
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity

from engram.training.metrics import Record

ROWS = 40

log = logging.getLogger("engram")


class Profile:
    """Profiles the second epoch after a start or resume; one-time work slows down the first."""

    def __init__(self, directory: Path) -> None:
        self.table, self.trace = directory / "profile.txt", directory / "profile.json"
        self._record: Record = {}
        self._epochs = 0
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        second = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1)
        self._profiler = torch.profiler.profile(activities=activities, schedule=second, on_trace_ready=self._write)
        self._profiler.start()

    def write(self, record: Record) -> None:
        """Called at the end of every epoch."""
        self._record, self._epochs = record, self._epochs + 1
        self._profiler.step()

    def close(self) -> None:
        self._profiler.stop()
        if self._epochs < 2:
            log.warning("trainer.profile: nothing was written, because less than two epochs were left to train")

    def _write(self, profiler: torch.profiler.profile) -> None:
        if self._epochs < 2:  # stopped before the profiled epoch ended
            return
        try:
            self._write_files(profiler)
        except (OSError, RuntimeError) as error:  # torch's own writer raises RuntimeError
            log.warning("trainer.profile: %s cannot be written: %s", self.trace, error)

    def _write_files(self, profiler: torch.profiler.profile) -> None:
        profiler.export_chrome_trace(str(self.trace))
        phases = [f"{name:<32} {value:10.3f}" for name, value in self._record.items() if name.startswith("time/")]
        operators = profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=ROWS)
        head = f"Epoch {self._record['epoch']}, slowed down by the profiler"
        self.table.write_text("\n".join([head, *phases, "", operators]), encoding="utf-8")
        log.info("wrote %s and %s", self.table, self.trace)
