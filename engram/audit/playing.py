"""Playing: what rows live through, drawn beforehand, and the ways in which batches of them may arrive."""

# B rows, S steps

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from engram.agent.actions import make_actions
from engram.audit.observations import random_observations
from engram.audit.subject import Answer, Moment, Segment, Subject
from engram.env.spec import EnvSpec

Schedule = list[tuple[slice, int]]  # which rows come next, at which of their steps


@dataclass(frozen=True)
class Story:
    """Everything that happens to some rows, whatever they do."""

    observations: Tensor  # [B, S, …]
    dones: Tensor  # [B, S]
    truncateds: Tensor
    noise: Tensor  # [B, S, …]

    @property
    def rows(self) -> int:
        return self.dones.shape[0]

    @property
    def steps(self) -> int:
        return self.dones.shape[1]

    @property
    def starts(self) -> Tensor:
        return self.dones | self.truncateds

    def moment(self, rows: slice, step: int) -> Moment:
        fields = (self.observations, self.dones, self.truncateds, self.noise)
        # Clones: a policy that changes what it is given must not change what others are told.
        observations, dones, truncateds, noise = (field[rows, step].clone() for field in fields)
        return Moment(observations, dones, truncateds, noise, first=rows.start)

    def segment(self, actions: Tensor, start: int = 0, stop: int | None = None) -> Segment:
        part = slice(start, stop)
        fields = (self.observations, self.dones, self.truncateds, actions)
        return Segment(*(field[:, part].clone() for field in fields))

    def with_other_past(self, row: Any, before: Any, generator: torch.Generator, spec: EnvSpec) -> "Story":
        """The same, but for other observations of these rows before a step."""
        other = random_observations(spec, (self.rows, self.steps), generator)
        observations = self.observations.clone()
        observations[row, :before] = other[row, :before]
        return replace(self, observations=observations)

    def part(self, start: int, stop: int | None = None) -> "Story":
        """Some of the steps."""
        fields = (self.observations, self.dones, self.truncateds, self.noise)
        return Story(*(field[:, start:stop] for field in fields))

    def with_starts(self, dones: Tensor | None = None, truncateds: Tensor | None = None) -> "Story":
        none = torch.zeros_like(self.dones)
        return replace(
            self, dones=none if dones is None else dones, truncateds=none if truncateds is None else truncateds
        )


@dataclass(frozen=True)
class Lived:
    """What a policy answered, [B, S]."""

    story: Story
    numbers: Tensor  # [B, S, K]
    value: Tensor
    log_prob: Tensor
    actions: Tensor


def write_story(spec: EnvSpec, rows: int, steps: int, generator: torch.Generator, end_chance: float = 0.0) -> Story:
    """Random observations, with episodes that end at random places, half of them by truncation."""
    ends = torch.rand(rows, steps, generator=generator) < end_chance
    cut = torch.rand(rows, steps, generator=generator) < 0.5
    noise = torch.rand(rows, steps, make_actions(spec).noise, generator=generator)
    return Story(random_observations(spec, (rows, steps), generator), ends & ~cut, ends & cut, noise)


def together(rows: int, steps: Iterable[int]) -> Schedule:
    """All rows in one batch, step by step."""
    return [(slice(0, rows), step) for step in steps]


def in_slices(rows: int, steps: Iterable[int], generator: torch.Generator) -> Schedule:
    """Uneven slices, cut anew every few steps, in random order; some rows run ahead of others."""
    schedule: Schedule = []
    steps = list(steps)
    for start in range(0, len(steps), 3):
        block = steps[start : start + 3]
        cuts = sorted({0, rows, *torch.randint(1, rows, (2,), generator=generator).tolist()})
        queues = [[(slice(a, b), step) for step in block] for a, b in pairwise(cuts)]
        while queues:
            queue = queues[int(torch.randint(len(queues), (1,), generator=generator))]
            schedule.append(queue.pop(0))
            queues = [queue for queue in queues if queue]
    return schedule


def live(subject: Subject, story: Story, schedule: Schedule | None = None) -> Lived:
    """Act through a story, from the memory the subject has."""
    if schedule is None:
        schedule = together(story.rows, range(story.steps))
    said: dict[int, dict[int, Answer]] = {step: {} for _, step in schedule}
    for rows, step in schedule:
        with saying(f"acting on rows {rows.start} to {rows.stop - 1} of {story.rows}, at their step {step}"):
            said[step][rows.start] = subject.act(story.moment(rows, step))

    def gather(field: Any) -> Tensor:
        by_step = [torch.cat([field(part).detach() for _, part in sorted(said[step].items())]) for step in sorted(said)]
        return torch.stack(by_step, 1)

    return Lived(
        story,
        gather(Answer.numbers),
        *(gather(lambda answer, name=name: getattr(answer, name)) for name in ("value", "log_prob", "actions")),
    )


@contextmanager
def saying(what: str) -> Iterator[None]:
    """Errors say what was being done."""
    try:
        yield
    except Exception as error:
        error.add_note(f"while {what}")
        raise


def random_actions(spec: EnvSpec, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Actions [B, T, …] of the environment's, for learning on what nobody played."""
    space = make_actions(spec)
    rows, steps = shape
    noise = torch.rand(rows * steps, space.noise, generator=generator)
    actions = space.sample(torch.zeros(rows * steps, space.logits), noise).actions
    return actions.view(rows, steps, *actions.shape[1:])
