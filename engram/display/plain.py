"""Plain lines for pipes, files and continuous integration: no colour, one line every few seconds, made for grep."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from engram.display.figures import clock, count, number, percent, plural, score
from engram.display.story import PHASES, Plan, Record, Result, Story
from engram.display.summary import NextSteps, nothing, offer, summary

SECONDS_BETWEEN_LINES = 5.0
FIGURES = {  # word of the line -> key of the record
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
        self, stream: TextIO, next_steps: NextSteps = nothing, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._next_steps = next_steps
        self._clock = clock
        self._story: Story | None = None
        self._printed = -1  # epoch of the latest line
        self._time = 0.0  # of the latest line

    def __enter__(self) -> "PlainDisplay":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A run that was stopped says where."""
        if not isinstance(error, BrokenPipeError):
            self._print_epoch()

    def start(self, plan: Plan) -> None:
        self._story = Story(plan, self._clock)
        sizes = plan.sizes
        envs, agents = plural(sizes.num_envs, "environment"), plural(plan.env.agents, "agent")
        self.message(
            f"run {plan.run}: policy {plan.policy} ({count(plan.parameters)} parameters) on {plan.env.name}, "
            f"device {plan.device}, {envs} of {agents}, {plural(sizes.num_workers, 'worker')}, "
            f"{plural(sizes.segments, 'segment')} of {plural(sizes.horizon, 'step')}, minibatch {sizes.minibatch_size}"
        )

    def update(self, record: Record) -> None:
        assert self._story is not None, "start() comes first"
        self._story.add(record)
        due = self._clock() - self._time >= SECONDS_BETWEEN_LINES
        if self._printed < 0 or due:  # the last epoch's line comes at the end
            self._print_epoch()

    def message(self, text: str) -> None:
        """A line as it is; what the stream's encoding lacks is escaped, for no run should end because of a letter."""
        encoding = self._stream.encoding or "utf-8"
        self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        self._stream.flush()

    def finish(self, result: Result) -> None:
        trained = self._story is not None and bool(self._story.record)
        self._print_epoch()
        for line in (*summary(result, trained), *offer(self._next_steps(result.steps))):
            self.message(line)

    def _print_epoch(self) -> None:
        """The latest epoch, unless it has been printed."""
        if self._story is None or not self._story.record or self._story.epoch == self._printed:
            return
        self._printed, self._time = self._story.epoch, self._clock()
        self.message(epoch_line(self._story))


def epoch_line(story: Story) -> str:
    """`epoch 12 steps 49,152/1,000,000 return 0.31 …`: a word and its value in turn, the same ones in every line."""
    words = {
        "epoch": str(story.epoch),
        "steps": f"{count(story.steps)}/{count(story.plan.total_timesteps)}",
        "return": score(story.value("return")),
        "length": number(story.value("episode/length")),
        "steps/s": count(story.steps_per_second),
        "left": clock(story.seconds_left).replace(" ", ""),
    }
    words |= {phase: percent(story.shares.get(phase)) for phase in PHASES}
    words |= {word: number(story.value(name)) for word, name in FIGURES.items()}
    words["megabytes"] = count(story.value("process/megabytes"))
    return " ".join(f"{word} {value}" for word, value in words.items())
