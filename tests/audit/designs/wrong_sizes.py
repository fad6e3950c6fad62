"""Designs that are right at small sizes, and wrong from some size on."""

import torch
from audit.broken.wrapper import OwnForward
from audit.designs.base import Design


class RowsShareFrom16(Design):
    def ids(self, td, B):
        return [i if i < 16 else 16 + i % 2 for i in super().ids(td, B)]


class LargeBatchesShifted(Design):
    """From 16 rows on, memory is read one row off."""

    def load(self, ids):
        memory = super().load(ids)
        return tuple(m.roll(1, 0) for m in memory) if len(ids) >= 16 else memory


class IdsWrapAt64(Design):
    def ids(self, td, B):
        return [i % 64 for i in super().ids(td, B)]


class FarIdsAreOne(Design):
    def ids(self, td, B):
        return [min(i, 1000) for i in super().ids(td, B)]


class LongSegmentsNotCleared(Design):
    def run(self, xs, starts, memory, actions=None):
        return super().run(xs, starts & (len(xs) < 32), memory, actions)


class Step48NotCleared(Design):
    def run(self, xs, starts, memory, actions=None):
        starts = starts & (torch.arange(len(xs)) != 48).unsqueeze(1)
        return super().run(xs, starts, memory, actions)


class Acts:
    """Counts acting steps."""

    acted = 0

    def save(self, ids, memory):
        self.acted += 1
        super().save(ids, memory)


class StoresNothingAfter50Steps(Acts, Design):
    def save(self, ids, memory):
        if self.acted < 50:
            super().save(ids, memory)


class ClearsNothingAfter50Steps(Acts, Design):
    def run(self, xs, starts, memory, actions=None):
        return super().run(xs, starts & (self.acted < 50), memory, actions)


class ForgetsEvery100Steps(Acts, Design):
    def save(self, ids, memory):
        super().save(ids, memory)
        if self.acted % 100 == 0:
            self.store = {}


class LargeWeightsNotCleared(Design):
    def clear(self, memory, start):
        large = float(self.cell.weight_hh.detach().abs().max()) > 0.5
        return memory if large else super().clear(memory, start)


class MemoryClampedWhenStored(Design):
    def save(self, ids, memory):
        super().save(ids, tuple(m.clamp(-1.5, 1.5) for m in memory))


class OneRowNotCleared(OwnForward):
    """A squeeze drops the episode starts of a minibatch of one row."""

    def _manage_lstm_state(self, td, B, TT, device):
        result = super()._manage_lstm_state(td, B, TT, device)
        if B == 1 and TT > 1:
            self.lstm.pending_starts = None
        return result


class OneStepFromNothing(OwnForward):
    """Segments of one step are learned from an empty memory."""

    def _manage_lstm_state(self, td, B, TT, device):
        h, c, ids = super()._manage_lstm_state(td, B, TT, device)
        return (h * 0, c * 0, ids) if td.batch_dims == 2 and TT == 1 else (h, c, ids)


class LastRowNotStoredInLargeBatches(Design):
    def save(self, ids, memory):
        if len(ids) >= 32:
            ids = ids[:-1]
        super().save(ids, memory)


class SwapsAfterALowerSlice(Design):
    """Two rows are swapped when a slice comes that begins before the one before it."""

    last = -1

    def save(self, ids, memory):
        if ids[0] < self.last and len(ids) > 1:
            memory = tuple(torch.cat([m[1:2], m[:1], m[2:]]) for m in memory)
        self.last = ids[0]
        super().save(ids, memory)

    def reset_memory(self):
        super().reset_memory()
        self.last = -1


class SecondEpochStartsElsewhere(Design):
    """Learning calls after the tenth begin with an empty memory."""

    lessons = 0

    def memory_for_learning(self, B):
        self.lessons += 1
        return super().memory_for_learning(B) if self.lessons <= 3 else self.blank(B)


class TableTooSmallIsClamped(Design):
    def ids(self, td, B):
        return [min(i, 99) for i in super().ids(td, B)]


class FromId4096OneRow(Design):
    def ids(self, td, B):
        return [min(i, 4096) for i in super().ids(td, B)]


class OneStepNotCleared(Design):
    """Segments of one step."""

    def run(self, xs, starts, memory, actions=None):
        return super().run(xs, starts & (actions is None or len(xs) > 1), memory, actions)


class KeepsTheLastRows(Design):
    """A store that holds the 100 rows that acted last."""

    def save(self, ids, memory):
        for row in ids:
            self.store.pop(row, None)
        super().save(ids, memory)
        for row in list(self.store)[:-100]:
            del self.store[row]
