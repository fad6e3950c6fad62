"""Policies whose memory is handled wrongly, one thing each."""

import torch
from audit.broken.alone import Alone
from audit.broken.case import Case
from torch import nn

BOUNDARIES = {"boundary_acting", "boundary_learning", "gradient_boundary"}
INSIDE = {"boundary_learning", "gradient_boundary", "replay"}


class StoredWithItsGraph(Alone):
    def store(self, ids, h, c):
        self.memory = self.memory.index_copy(0, ids, torch.cat([h, c], -1).transpose(0, 1))
        self.known[ids] = True


class EveryStateKept(Alone):
    def store(self, ids, h, c):
        super().store(ids, h, c)
        self.__dict__.setdefault("history", []).append(h.detach())


class ANewKeyEveryStep(Alone):
    def store(self, ids, h, c):
        super().store(ids, h, c)
        seen = self.__dict__.setdefault("seen", {})
        seen[len(seen)] = "a note"


class NeverCleared(Alone):
    def clear(self, h, c, start):
        return h, c


class TruncationIgnored(Alone):
    def starts(self, td, B, T):
        return td["dones"].reshape(B, T).t()


class TerminationIgnored(Alone):
    def starts(self, td, B, T):
        return td["truncateds"].reshape(B, T).t()


class AllRowsCleared(Alone):
    def starts(self, td, B, T):
        starts = super().starts(td, B, T)
        return starts.any(1, keepdim=True).expand(T, B)


class ClearedAfterTheStep(Alone):
    def remember(self, features, h, c, starts):
        outputs, h, c = super().remember(features, h, c, starts & (features.shape[0] > 1))
        return outputs, *(super().clear(h, c, starts[-1].view(1, -1, 1)) if len(features) == 1 else (h, c))


class ClearedAtTheFirstStepOnly(Alone):
    def starts(self, td, B, T):
        return super().starts(td, B, T) & (torch.arange(T) == 0).unsqueeze(1)


class ClearedOneStepLateInSegments(Alone):
    def starts(self, td, B, T):
        starts = super().starts(td, B, T)
        return starts if T == 1 else torch.cat([starts[:1] & False, starts[:-1]])


class ClearedOneStepEarlyInSegments(Alone):
    def starts(self, td, B, T):
        starts = super().starts(td, B, T)
        return starts if T == 1 else torch.cat([starts[1:] | starts[:-1], starts[-1:]])


class OnlyHiddenCleared(Alone):
    def clear(self, h, c, start):
        return h.masked_fill(start, 0), c


class OnlyOneLayerCleared(Alone):
    def clear(self, h, c, start):
        start = start & torch.tensor([True, False]).view(2, 1, 1)
        return super().clear(h, c, start)


class GradientsCross(Alone):
    def clear(self, h, c, start):
        return h - (h * start).detach(), c - (c * start).detach()


class GradientCutEveryStep(Alone):
    def clear(self, h, c, start):
        return super().clear(h.detach(), c.detach(), start)


class NoGradientThroughTheLSTM(Alone):
    def remember(self, features, h, c, starts):
        with torch.no_grad():
            return super().remember(features, h, c, starts)


class RowsOfTheBatch(Alone):
    def ids(self, td, B, acting):
        return torch.arange(B)


class RowsSwapped(Alone):
    def store(self, ids, h, c):
        super().store(ids, h.flip(1), c.flip(1))


class MemoryShared(Alone):
    def recall(self, ids):
        h, c = super().recall(ids)
        return h.mean(1, keepdim=True).expand_as(h).contiguous(), c


class BySlice(Alone):
    """The scheme of many: a dict keyed by the first id of a slice."""

    def __init__(self, env, **options):
        super().__init__(env, **options)
        self.slices = {}

    def recall(self, ids):
        return self.slices.get(int(ids[0]), super().recall(ids))

    def store(self, ids, h, c):
        super().store(ids, h, c)
        self.slices[int(ids[0])] = h.detach(), c.detach()

    def set_memory(self, memory):
        super().set_memory(memory)
        self.slices = {}

    def reset_memory(self):
        super().reset_memory()
        self.slices = {}


class RowsAndStepsMixedUp(Alone):
    """A reshape where a transpose is needed."""

    def remember(self, features, h, c, starts):
        T, B = features.shape[:2]
        mixed = features.transpose(0, 1).reshape(T, B, -1)
        return super().remember(mixed, h, c, starts)


class NothingStored(Alone):
    def store(self, ids, h, c):
        pass


class InTheStateArgument(Alone):
    """Memory in the argument that no training loop hands back, and with its graph."""

    def forward(self, td, state=None, action=None):
        self.handed = {} if state is None else state
        return super().forward(td, state, action)

    def recall(self, ids):
        h, c = super().recall(ids)
        return (h, c) if self.handed.get("lstm_h") is None else (self.handed["lstm_h"], self.handed["lstm_c"])

    def store(self, ids, h, c):
        self.handed["lstm_h"], self.handed["lstm_c"] = h, c


class LearnsWithoutMemory(Alone):
    def starts(self, td, B, T):
        return super().starts(td, B, T) | torch.tensor(T > 1)


class LearnsFromNothing(Alone):
    """Every segment is learned as if its rows had seen nothing before."""

    def ids(self, td, B, acting):
        ids = super().ids(td, B, acting)
        return ids if acting else ids + 140


class SeesTheFuture(Alone):
    def remember(self, features, h, c, starts):
        if len(features) > 1:
            features = features + 0.5 * features.flip(0)
        return super().remember(features, h, c, starts)


class RoundedMemory(Alone):
    def store(self, ids, h, c):
        super().store(ids, h.bfloat16().to(h), c.bfloat16().to(c))


class Dropout(Alone):
    def __init__(self, env, **options):
        super().__init__(env, **options)
        self.dropout = nn.Dropout(0.2)

    def encode(self, observations):
        return self.dropout(super().encode(observations))


class BatchNorm(Alone):
    def __init__(self, env, **options):
        super().__init__(env, **options)
        self.norm = nn.BatchNorm1d(12)

    def encode(self, observations):
        return self.norm(super().encode(observations))


class NormaliserThatLearns(Alone):
    """Observations by their running mean, which every acting call moves on."""

    def __init__(self, env, **options):
        super().__init__(env, **options)
        self.register_buffer("mean", torch.zeros(5))

    def forward(self, td, state=None, action=None):
        if action is None:
            self.mean.lerp_(td["env_obs"].mean(0), 0.1)
        return super().forward(td, state, action)

    def encode(self, observations):
        return super().encode(observations - self.mean)


CASES = [
    Case(StoredWithItsGraph, {"detachment", "graph_growth"}, "memory"),
    Case(EveryStateKept, {"graph_growth"}, "1 live tensors"),
    Case(ANewKeyEveryStep, {"graph_growth"}, "1 entries"),
    Case(NeverCleared, BOUNDARIES, "not cleared at all"),
    Case(TruncationIgnored, BOUNDARIES, "truncateds: memory is not cleared at all"),
    Case(TerminationIgnored, BOUNDARIES, "dones: memory is not cleared at all"),
    Case(AllRowsCleared, {"boundary_acting", "boundary_learning", "row_isolation", "replay"}, "all rows are cleared"),
    Case(ClearedAfterTheStep, {"boundary_acting", "replay"}, "too late"),
    Case(ClearedAtTheFirstStepOnly, INSIDE, "not cleared inside a segment"),
    Case(ClearedOneStepLateInSegments, INSIDE, "one step too late"),
    Case(ClearedOneStepEarlyInSegments, {"boundary_learning", "replay"}, "before it"),
    Case(OnlyHiddenCleared, BOUNDARIES, "only in part"),
    Case(OnlyOneLayerCleared, BOUNDARIES, "only in part"),
    Case(GradientsCross, {"gradient_boundary", "nan_at_start"}, "crosses starts at steps 1, 2, 3"),
    Case(GradientCutEveryStep, {"horizon"}, "reaches 0 steps back"),
    Case(NoGradientThroughTheLSTM, {"horizon", "gradient_health"}, "lstm"),
    Case(RowsOfTheBatch, {"row_isolation", "memory_interface", "replay"}, "in acting"),
    Case(RowsSwapped, {"row_isolation", "memory_interface", "replay"}),
    Case(MemoryShared, {"row_isolation", "boundary_acting", "replay", "memory_interface"}),
    Case(BySlice, {"row_isolation", "memory_interface", "replay"}),
    Case(RowsAndStepsMixedUp, {*INSIDE, "row_isolation", "causality"}, "in learning"),
    Case(NothingStored, {"memory_used", "replay", "memory_interface"}),
    Case(InTheStateArgument, {"memory_used", "replay", "detachment", "memory_interface"}, "state['lstm_h']"),
    Case(LearnsWithoutMemory, {"memory_used", "replay"}),
    Case(LearnsFromNothing, {"replay"}, "where a segment begins with memory from before it"),
    Case(SeesTheFuture, {"causality", "replay", "boundary_learning", "gradient_boundary"}),
    Case(RoundedMemory, {"replay"}),
    Case(Dropout, {"determinism", "modes", "replay"}, "as with dropout"),
    Case(BatchNorm, {"modes", "replay"}),
    Case(NormaliserThatLearns, {"determinism", "replay"}, "calls change mean"),
]
