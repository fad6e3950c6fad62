"""Designs that keep memory in the wrong place, form or order."""

import torch
from audit.broken.wrapper import OwnForward
from audit.designs.base import Design
from audit.designs.right import ActorAndCriticApart, LearnedStart
from torch import nn


class HalfPrecisionStore(Design):
    """Memory is stored as float16."""

    def save(self, ids, memory):
        super().save(ids, tuple(m.half().to(m.dtype) for m in memory))


class CellNotStored(Design):
    def save(self, ids, memory):
        super().save(ids, (memory[0], torch.zeros_like(memory[1])))


class SlicesStoredFromZero(Design):
    """Memory is read by id, and written to the first rows."""

    def save(self, ids, memory):
        super().save(list(range(len(ids))), memory)


class OffByOneInLaterSlices(Design):
    """A slice that does not begin at 0 is read one row too far."""

    def load(self, ids):
        return super().load([i + 1 for i in ids] if ids[0] > 0 else ids)


class KeyedBySliceStart(Design):
    """Each slice has a memory of its own, under its first id and its size."""

    def load(self, ids):
        slices = self.__dict__.setdefault("slices", {})
        return slices.get((ids[0], len(ids))) or self.blank(len(ids))

    def save(self, ids, memory):
        super().save(ids, memory)
        self.__dict__.setdefault("slices", {})[ids[0], len(ids)] = tuple(m.detach() for m in memory)

    def set_memory(self, memory):
        super().set_memory(memory)
        rows = sorted(self.store)
        self.slices = {(rows[0], len(rows)): super().load(rows)} if rows else {}

    def reset_memory(self):
        super().reset_memory()
        self.slices = {}


class SetMemoryKeepsOtherRows(Design):
    """Rows that are not given stay as they were."""

    def set_memory(self, memory):
        before = self.store
        super().set_memory(memory)
        self.store = before | self.store


class IdsAsBytes(Design):
    def ids(self, td, B):
        return [i % 256 for i in super().ids(td, B)]


class HashedIds(Design):
    """A table of 509 places, in which ids collide."""

    def ids(self, td, B):
        return [i * 7 % 509 for i in super().ids(td, B)]


class GivesItsOwnTensors(Design):
    """get_memory returns the store itself, which acting writes into."""

    def get_memory(self):
        return tuple({row: memory[part] for row, memory in self.store.items()} for part in range(2))

    def save(self, ids, memory):
        for number, row in enumerate(ids):
            if row in self.store:
                for ours, new in zip(self.store[row], memory, strict=True):
                    ours.copy_(new[number].detach())
            else:
                self.store[row] = tuple(m[number].detach().clone() for m in memory)


class MemoryOfTheStepBefore(Design):
    """get_memory is one step behind."""

    def save(self, ids, memory):
        self.before = {**self.__dict__.get("before", {}), **{i: self.store[i] for i in ids if i in self.store}}
        super().save(ids, memory)

    def get_memory(self):
        late = self.__dict__.get("before", {})
        return tuple(
            {row: late.get(row, memory)[part].clone() for row, memory in self.store.items()} for part in (0, 1)
        )

    def reset_memory(self):
        super().reset_memory()
        self.before = {}


class OneEnvironmentResetsAll(Design):
    def reset_env_memory(self, env_id):
        self.store = {}


class LearningForgets(OwnForward):
    """A learning call clears what acting remembers."""

    def _manage_lstm_state(self, td, B, TT, device):
        if td.batch_dims == 2:
            self.reset_memory()
        return super()._manage_lstm_state(td, B, TT, device)


class StoreByStep(Design):
    """Nothing is ever replaced: each step has an entry of its own."""

    def save(self, ids, memory):
        super().save(ids, memory)
        steps = self.__dict__.setdefault("steps", {})
        steps[len(steps)] = tuple(m.detach() for m in memory)


class CriticOverwritesTheActor(ActorAndCriticApart):
    def save(self, ids, memory):
        super().save(ids, (memory[1], memory[1]))


class LearnsFromTheLearnedStart(LearnedStart):
    """A segment always begins with the learned initial state."""

    def memory_for_learning(self, B):
        return self.blank(B)


class AddsTheLearnedStart(Design):
    """A learned state is added in each call, so that acting adds it more often than learning does."""

    def build(self):
        super().build()
        self.h0 = nn.Parameter(0.3 * torch.randn(self.hidden))

    def run(self, xs, starts, memory, actions=None):
        return super().run(xs, starts, (memory[0] + self.h0, memory[1]), actions)


class CachedWeights(Design):
    """Acting uses a copy of the recurrent weights made at the first call."""

    def step(self, x, memory):
        if torch.is_grad_enabled() and len(x) and self.__dict__.get("cached") is None:
            self.cached = [p.detach().clone() for p in self.cell.parameters()]
        return super().step(x, memory)

    def run(self, xs, starts, memory, actions=None):
        if actions is not None:
            return super().run(xs, starts, memory, actions)
        if self.__dict__.get("cached") is None:
            self.cached = [p.detach().clone() for p in self.cell.parameters()]
        names = [name for name, _ in self.cell.named_parameters()]
        weights = dict(zip(names, (c.to(xs.dtype) for c in self.cached), strict=True))
        memory = self.clear(memory, starts[0])
        h, c = torch.func.functional_call(self.cell, weights, (xs[0], memory))
        return h.unsqueeze(0), (h, c)


class WideMinibatchesShareTheirStart(Design):
    """From 24 rows on, every row learns from the memory of the first."""

    def memory_for_learning(self, B):
        memory = super().memory_for_learning(B)
        return memory if B < 24 else tuple(m[:1].expand_as(m) for m in memory)


class WindowOfRows(OwnForward):
    """A wrapper's policy that stores under ids shifted by the size of the slice."""

    def _store_lstm_state(self, lstm_h, lstm_c, env_id):
        if isinstance(env_id, torch.Tensor) and int(env_id[0]) > 0:
            env_id = env_id - 1
        super()._store_lstm_state(lstm_h, lstm_c, env_id)


class ChangesTheStateItIsGiven(nn.Module):
    """A plain module that writes the new state into the caller's tensor."""

    def __init__(self, env):
        super().__init__()
        self.cell = nn.GRUCell(5, 16)
        self.actor, self.critic = nn.Linear(16, 4), nn.Linear(16, 1)

    def initial_state(self, rows):
        return torch.zeros(rows, 16, dtype=self.cell.weight_hh.dtype)

    def forward(self, obs, state, starts):
        h = self.cell(obs, torch.where(starts.view(-1, 1), 0.0, state))
        with torch.no_grad():
            state.copy_(h)
        return self.actor(h), self.critic(h), h


class KeepsTheStateTwice(nn.Module):
    """A plain module that uses the state of its last call where the shape fits."""

    def __init__(self, env):
        super().__init__()
        self.cell, self.last = nn.GRUCell(5, 16), None
        self.actor, self.critic = nn.Linear(16, 4), nn.Linear(16, 1)

    def forward(self, obs, state):
        if self.last is not None and self.last.shape == state.shape:
            state = 0.5 * state + 0.5 * self.last.to(state)
        h = self.cell(obs, state)
        self.last = h.detach()
        return self.actor(h), self.critic(h), h


class LayersViewedAsRows(Design):
    """Two layers as [rows, layers, H], read by view(layers, rows, H): right until rows start or are split."""

    def build(self):
        self.rnn = nn.GRU(self.features, self.hidden, 2)

    def blank(self, rows):
        return (self.critic.weight.new_zeros(rows, 2, self.hidden),)

    def step(self, x, memory):
        out, h = self.rnn(x.unsqueeze(0), memory[0].reshape(2, -1, self.hidden))
        return out[0], (h.reshape(-1, 2, self.hidden),)


class OneStateForTheBatch(Design):
    """A state in one attribute, made anew when the batch has another size."""

    def save(self, ids, memory):
        self.store = {row: tuple(m[row].detach().clone() for m in memory) for row in range(len(ids))}

    def load(self, ids):
        if len(ids) != len(self.store):
            return self.blank(len(ids))
        return super().load(list(range(len(ids))))
