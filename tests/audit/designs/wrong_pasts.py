"""Designs in which a row continues with another past than its own, or in which one call or line is at fault."""

import torch
from audit.designs.base import Design


class PairsShareAMemory(Design):
    def load(self, ids):
        return super().load([ids[n // 2 * 2] for n in range(len(ids))])


class ReplaysFromRowZero(Design):
    def memory_for_learning(self, B):
        return self.load([0] * B)


class ReplaysFromHalfTheMemory(Design):
    def memory_for_learning(self, B):
        return tuple(0.5 * part for part in super().memory_for_learning(B))


class ReplaysFromTheMean(Design):
    def memory_for_learning(self, B):
        return tuple(part.mean(0, keepdim=True).expand_as(part) for part in super().memory_for_learning(B))


class GoesBackToTheStart(Design):
    """A long segment is learned in parts of four steps, each from the memory at the segment's start."""

    def run(self, xs, starts, memory, actions=None):
        parts = [
            super(GoesBackToTheStart, self).run(*each, memory)
            for each in zip(xs.split(4), starts.split(4), strict=True)
        ]
        return torch.cat([outputs for outputs, _ in parts]), parts[-1][1]


class OneFlagForAllRows(Design):
    """When acting, all rows are cleared by the flag of row 0."""

    def clear(self, memory, start):
        return super().clear(memory, start if torch.is_grad_enabled() else start[:1].expand_as(start))

    def run(self, xs, starts, memory, actions=None):
        with torch.set_grad_enabled(actions is not None):
            return super().run(xs, starts, memory, actions)


class StartedRowsFirst(Design):
    """Rows that start an episode are moved to the front, and their memory stays there."""

    def clear(self, memory, start):
        cleared = super().clear(memory, start)
        order = start.long().argsort(descending=True, stable=True)
        return tuple(part[order] for part in cleared)


class ForgetsEveryTenthCall(Design):
    calls = 0

    def load(self, ids):
        self.calls += 1
        return self.blank(len(ids)) if self.calls % 10 == 0 else super().load(ids)


class CellClearedLate(Design):
    """The cell is cleared after the first step of an episode, not before it."""

    def run(self, xs, starts, memory, actions=None):
        outputs = []
        for x, start in zip(xs, starts, strict=True):
            h, (_, c) = self.step(x, (self.clear(memory, start)[0], memory[1]))
            memory = h, self.clear((h, c), start)[1]
            outputs.append(h)
        return torch.stack(outputs), memory


class HookOnTheCell(Design):
    def before_step(self, memory, t, T):
        if memory[1].requires_grad:
            memory[1].register_hook(lambda gradient: 0.9 * gradient)
        return memory


class ClearedThroughData(Design):
    def clear(self, memory, start):
        memory = tuple(part.clone() for part in memory)
        for part in memory:
            part.data[start] = 0
        return memory


class OneRowLearns(Design):
    """Only the first row's gradient goes through time."""

    def before_step(self, memory, t, T):
        return tuple(torch.cat([part[:1], part[1:].detach()]) for part in memory)


class SeesTheNextStep(Design):
    def run(self, xs, starts, memory, actions=None):
        ahead = torch.cat([xs[1:], torch.zeros_like(xs[:1])])
        return super().run(xs + 0.1 * ahead, starts, memory, actions)


class LearnsOnFromTheLastSegment(Design):
    last = None

    def run(self, xs, starts, memory, actions=None):
        if actions is None:
            return super().run(xs, starts, memory)
        if self.last is not None and len(self.last[0]) == xs.shape[1]:
            memory = self.last
        outputs, memory = super().run(xs, starts, memory, actions)
        self.last = tuple(part.detach() for part in memory)
        return outputs, memory

    def reset_memory(self):
        super().reset_memory()


class KeepsASecondCopy(Design):
    """What was stored last is read before what is kept by row, and not cleared with it."""

    last = None

    def load(self, ids):
        return self.last[1] if self.last is not None and self.last[0] == ids else super().load(ids)

    def save(self, ids, memory):
        super().save(ids, memory)
        self.last = ids, tuple(part.detach() for part in memory)


class StoresLess(Design):
    def save(self, ids, memory):
        super().save(ids, tuple(0.9 * part for part in memory))


class StoresThreeDecimals(Design):
    def save(self, ids, memory):
        super().save(ids, tuple((1000 * part).round() / 1000 for part in memory))


class OddBatchesLoseTheirLastRow(Design):
    def load(self, ids):
        memory = super().load(ids)
        keep = torch.arange(len(ids)).unsqueeze(-1) < len(ids) - (len(ids) > 1 and len(ids) % 2)
        return tuple(torch.where(keep, part, 0.0) for part in memory)


class StartsFromTheOthers(Design):
    """An episode starts from the mean memory of the batch."""

    def clear(self, memory, start):
        return tuple(torch.where(start.unsqueeze(-1), part.mean(0, keepdim=True), part) for part in memory)


class GrowthForgets(Design):
    """A row with an id beyond all others makes the store larger, and empty."""

    size = 0

    def save(self, ids, memory):
        if self.size and max(ids) >= self.size:
            self.store = {}
        self.size = max(self.size, max(ids) + 1)
        super().save(ids, memory)


class LearnsInBfloat16(Design):
    def forward(self, td, state=None, action=None):
        self.learning = action is not None
        return super().forward(td, state, action)

    def encode(self, observations):
        x = super().encode(observations)
        return x.bfloat16().to(x.dtype) if self.learning else x


class ForgetsWithoutGradients(Design):
    def before_step(self, memory, t, T):
        return memory if torch.is_grad_enabled() else tuple(0.97 * part for part in memory)


class StoresOnlyTheFirst64(Design):
    """A table with a place for 64 rows: what others write is dropped."""

    def save(self, ids, memory):
        known = [n for n, row in enumerate(ids) if row < 64]
        super().save([ids[n] for n in known], tuple(part[known] for part in memory))
