"""The display for pipes, files and CI: a plain line every few seconds that grep can read."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from engram.display.formatting import clock, count, number, percent, plural, score
from engram.display.progress import PHASES, Record, RunProgress
from engram.display.summary import NextSteps, explain_last_batch, no_next_steps, offer, summary

if TYPE_CHECKING:
    from engram.training.run import RunPlan, RunResult

SECONDS_BETWEEN_LINES = 5.0
METRICS = {  # word of the line -> key of the record
    "policy": "loss/policy",
    "value": "loss/value",
    "entropy": "loss/entropy",
    "kl": "loss/kl",
    "clip": "loss/clip_fraction",
    "explained": "value/explained_variance",
    "gradient": "gradient/norm",
    "replay_error": "memory/replay_error",
}


class PlainDisplay:
    """A line for the first epoch and the last, and every few seconds between them."""

    def __init__(
        self, stream: TextIO, next_steps: NextSteps = no_next_steps, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._next_steps = next_steps
        self._clock = clock
        self._progress: RunProgress | None = None
        self._printed_epoch = -1
        self._printed_time = 0.0

    def __enter__(self) -> "PlainDisplay":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Print the last epoch of a run that was stopped."""
        if not isinstance(error, BrokenPipeError):
            self._print_epoch()

    def building(self, run: str, what: str) -> None:
        """Say at once what is being built, until `start`."""
        self.message(f"run {run}: building {what}")

    def start(self, plan: "RunPlan") -> None:
        self._progress = RunProgress(plan, self._clock)
        sizes = plan.sizes
        envs, agents = plural(sizes.num_envs, "environment"), plural(plan.env.agents, "agent")
        self.message(
            f"run {plan.run}: policy {plan.policy} ({count(plan.parameters)} parameters) on {plan.env.name}, "
            f"device {plan.device}, {envs} of {agents}, {plural(sizes.num_workers, 'worker')}, "
            f"{plural(sizes.segments, 'segment')} of {plural(sizes.horizon, 'step')}, minibatch {sizes.minibatch_size}"
        )
        if explanation := explain_last_batch(plan):
            self.message(explanation)

    def update(self, record: Record) -> None:
        assert self._progress is not None, "start() comes first"
        self._progress.add(record)
        due = self._clock() - self._printed_time >= SECONDS_BETWEEN_LINES
        if self._printed_epoch < 0 or due:  # `finish` prints the last epoch
            self._print_epoch()

    def message(self, text: str) -> None:
        """Print a line. Characters that the stream cannot encode are escaped, so that they never end a run."""
        encoding = self._stream.encoding or "utf-8"
        self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        self._stream.flush()

    def finish(self, result: "RunResult") -> None:
        trained = self._progress is not None and bool(self._progress.record)
        self._print_epoch()
        for line in (*summary(result, trained), *offer(self._next_steps(result.steps))):
            self.message(line)

    def _print_epoch(self) -> None:
        """Print the latest epoch, unless it has been printed."""
        if self._progress is None or not self._progress.record or self._progress.epoch == self._printed_epoch:
            return
        self._printed_epoch, self._printed_time = self._progress.epoch, self._clock()
        self.message(epoch_line(self._progress))


def epoch_line(progress: RunProgress) -> str:
    """`epoch 12 steps 49,152/1,000,000 return 0.31 …`: alternating names and values, the same in every line."""
    words = {
        "epoch": str(progress.epoch),
        "steps": f"{count(progress.steps)}/{count(progress.plan.total_timesteps)}",
        "return": score(progress.value("return")),
        "length": number(progress.value("episode/length")),
        "steps/s": count(progress.steps_per_second),
        "left": clock(progress.seconds_left).replace(" ", ""),
    }
    words |= {phase: percent(progress.time_fractions.get(phase)) for phase in PHASES}
    words |= {word: number(progress.value(name)) for word, name in METRICS.items()}
    words["megabytes"] = count(progress.value("process/megabytes"))
    return " ".join(f"{word} {value}" for word, value in words.items())


class SilentDisplay:
    """Shows nothing."""

    def __enter__(self) -> "SilentDisplay":
        return self

    def __exit__(self, *error: object) -> None: ...

    def building(self, run: str, what: str) -> None: ...

    def start(self, plan: "RunPlan") -> None: ...

    def update(self, record: Record) -> None: ...

    def message(self, text: str) -> None: ...

    def finish(self, result: "RunResult") -> None: ...
