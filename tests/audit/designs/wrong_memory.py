"""Designs that clear, keep or draw the wrong thing."""

import numpy as np
import torch
from audit.designs.base import Design
from audit.designs.right import (
    ActorAndCriticApart,
    Clockwork,
    FrameStack,
    LearnedStart,
    PreviousAction,
    Projected,
    WindowAttention,
)
from torch import nn

KEPT = []


class FlagsCancelOut(Design):
    def starts(self, td):
        return td["dones"] ^ td["truncateds"]


class NaNSurvives(Design):
    def clear(self, memory, start):
        return tuple(m * ~start.view(-1, 1) for m in memory)


class NaNSurvivesInTheCell(Design):
    def clear(self, memory, start):
        return super().clear(memory, start)[0], memory[1] * ~start.view(-1, 1)


class ClearedOneStepLate(Design):
    """In acting and in learning alike: the new episode's first step still has the old memory."""

    def build(self):
        super().build()
        self.pending = {}

    def blank(self, rows):
        weight = self.critic.weight
        return weight.new_zeros(rows, 16), weight.new_zeros(rows, 16), weight.new_zeros(rows, 1)

    def clear(self, memory, start):
        late = memory[2] > 0.5
        h, c = (torch.where(late, 0.0, m) for m in memory[:2])
        return h, c, start.view(-1, 1).to(h.dtype)

    def step(self, x, memory):
        h, c = self.cell(x, memory[:2])
        return h, (h, c, memory[2])


class SecondOfTwoStartsIgnored(Design):
    """An episode of one step is not seen as one."""

    def run(self, xs, starts, memory, actions=None):
        before = torch.cat([starts[:1] & False, starts[:-1]])
        return super().run(xs, starts & ~before, memory, actions)


class FirstStepOfASegmentNotCleared(Design):
    def run(self, xs, starts, memory, actions=None):
        if len(xs) > 1:
            starts = torch.cat([starts[:1] & False, starts[1:]])
        return super().run(xs, starts, memory, actions)


class LastStepOfASegmentNotCleared(Design):
    def run(self, xs, starts, memory, actions=None):
        if len(xs) > 1:
            starts = torch.cat([starts[:-1], starts[-1:] & False])
        return super().run(xs, starts, memory, actions)


class NoiseInTheMemory(Design):
    def step(self, x, memory):
        h, (_, c) = super().step(x, memory)
        c = c + 0.01 * torch.randn_like(c)
        return h, (h, c)


class RandomStart(Design):
    def clear(self, memory, start):
        return tuple(torch.where(start.view(-1, 1), torch.randn_like(m), m) for m in memory)


class NoiseOfNumpy(Design):
    def encode(self, observations):
        noise = torch.from_numpy(np.random.default_rng().normal(0, 0.01, observations.shape))
        return super().encode(observations + noise.to(observations.dtype))


class LastHiddenKeptWithItsGraph(Design):
    """In a plain attribute, which nothing reads."""

    def step(self, x, memory):
        h, memory = super().step(x, memory)
        self.last_hidden = h
        return h, memory


class GlobalKeepsTheGraph(Design):
    def step(self, x, memory):
        h, memory = super().step(x, memory)
        KEPT[:] = [h]
        return h, memory


class ClassKeepsTheGraph(Design):
    last = None

    def step(self, x, memory):
        h, memory = super().step(x, memory)
        type(self).last = h
        return h, memory


class StoredAttached(Design):
    def save(self, ids, memory):
        for number, row in enumerate(ids):
            self.store[row] = tuple(m[number] for m in memory)


class CellNotSaved(Design):
    """What get_memory gives has no cell."""

    def get_memory(self):
        h, c = super().get_memory()
        return h, {row: torch.zeros_like(m) for row, m in c.items()}


class MemoryAliased(Design):
    """set_memory keeps what it was given, and acting writes into it."""

    def set_memory(self, memory):
        self.store = {row: tuple(part[row] for part in memory) for row in memory[0]}

    def save(self, ids, memory):
        for number, row in enumerate(ids):
            if row in self.store:
                for ours, new in zip(self.store[row], memory, strict=True):
                    ours.copy_(new[number].detach())
            else:
                self.store[row] = tuple(m[number].detach().clone() for m in memory)


class PositionsOnlyWhenLearning(Design):
    """A position in the segment, which acting never has."""

    def build(self):
        super().build()
        self.position = nn.Parameter(0.3 * torch.randn(512, self.features))

    def run(self, xs, starts, memory, actions=None):
        return super().run(xs + self.position[: len(xs)].unsqueeze(1), starts, memory, actions)


class PreviousActionOfNow(PreviousAction):
    """When learning, the previous action is the one to be judged."""

    def run(self, xs, starts, memory, actions=None):
        if actions is None:
            return super().run(xs, starts, memory)
        outputs = []
        for t in range(len(xs)):
            memory = self.after_action(self.clear(memory, starts[t]), actions[t])
            h, memory = self.step(xs[t], memory)
            outputs.append(h)
        return torch.stack(outputs), memory


class PreviousActionNotCleared(PreviousAction):
    def clear(self, memory, start):
        return super().clear(memory, start)[0], memory[1]


class AttentionAcrossEpisodes(WindowAttention):
    def clear(self, memory, start):
        return memory


class FramesOfTheLastEpisode(FrameStack):
    def clear(self, memory, start):
        return memory


class OneClockForAll(Clockwork):
    """The clock is the policy's, not the row's."""

    ticks = 0

    def step(self, x, memory):
        self.ticks += 1
        clock = torch.full_like(memory[2], float(self.ticks))
        hidden, memory = super().step(x, (*memory[:2], clock))
        return hidden, memory

    def reset_memory(self):
        super().reset_memory()
        self.ticks = 0


class LearnedStartOnlyWhenActing(LearnedStart):
    def clear(self, memory, start):
        if len(self.shape_of_call) == 1:
            return super().clear(memory, start)
        return tuple(m.masked_fill(start.view(-1, 1), 0) for m in memory)

    def forward(self, td, state=None, action=None):
        self.shape_of_call = td.batch_size
        return super().forward(td, state, action)


class CriticsMemoryNeverCleared(ActorAndCriticApart):
    def clear(self, memory, start):
        return super().clear(memory, start)[0], memory[1]


class ProjectedCellNotCleared(Projected):
    def clear(self, memory, start):
        return super().clear(memory, start)[0], memory[1]


class NeighboursMixed(Design):
    """A convolution over rows."""

    def encode(self, observations):
        x = super().encode(observations)
        return x + 0.1 * x.roll(1, 0)


class RowsSortedByLength(Design):
    """Rows are sorted for the recurrence, and not put back."""

    def run(self, xs, starts, memory, actions=None):
        if len(xs) > 1:
            order = starts.sum(0).argsort(stable=True)
            xs, starts = xs[:, order], starts[:, order]
            memory = tuple(m[order] for m in memory)
        return super().run(xs, starts, memory, actions)


class StateOneStepLate(Design):
    """The memory that is read for a segment is the one after its first step."""

    def get_memory(self):
        return self.__dict__.get("late") or super().get_memory()

    def save(self, ids, memory):
        super().save(ids, tuple(1.05 * m for m in memory))


class DecaysBetweenCalls(Design):
    def load(self, ids):
        return tuple(0.98 * m for m in super().load(ids))


class StatisticsOfTheBatch(Design):
    def encode(self, observations):
        x = super().encode(observations)
        return (x - x.mean(0)) / (x.std(0, correction=0) + 1)


class HistoryGrows(Design):
    def step(self, x, memory):
        self.__dict__.setdefault("history", []).append(float(x.detach().mean()))
        return super().step(x, memory)
