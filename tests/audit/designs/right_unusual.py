"""More right designs: discrete, complex, nested and cached memories, and other actions."""

from typing import NamedTuple

import torch
from audit.broken.wrapper import Small
from audit.designs.base import Design
from torch import Tensor, nn


class EpisodeMean(Design):
    """The mean of all features of the episode."""

    def build(self):
        self.mix = nn.Linear(2 * self.features, self.hidden)

    def blank(self, rows):
        weight = self.critic.weight
        return weight.new_zeros(rows, self.features), weight.new_zeros(rows, 1)

    def step(self, x, memory):
        total, count = memory[0] + x, memory[1] + 1
        return self.mix(torch.cat([x, total / count], -1)).tanh(), (total, count)


class Reservoir(Design):
    """An echo state network: the recurrent weights are fixed."""

    def build(self):
        self.inner, self.mix = nn.Linear(self.features + 32, 32), nn.Linear(32, self.hidden)
        self.inner.requires_grad_(False)

    def blank(self, rows):
        return (self.critic.weight.new_zeros(rows, 32),)

    def step(self, x, memory):
        h = 0.7 * memory[0] + 0.3 * self.inner(torch.cat([x, memory[0]], -1)).tanh()
        return self.mix(h).tanh(), (h,)


class RingBuffer(Design):
    """A buffer of eight features with a write pointer."""

    def build(self):
        self.mix = nn.Linear(8 * self.features + 8, self.hidden)

    def blank(self, rows):
        return self.critic.weight.new_zeros(rows, 8, self.features), torch.zeros(rows, dtype=torch.long)

    def step(self, x, memory):
        buffer, pointer = memory
        place = nn.functional.one_hot(pointer, 8).to(x.dtype)
        buffer = torch.where(place.unsqueeze(-1) > 0, x.unsqueeze(1), buffer)
        return self.mix(torch.cat([buffer.flatten(1), place], -1)).tanh(), (buffer, (pointer + 1) % 8)


class Latch(Design):
    """Discrete memory: whether the first feature was ever above the second. No gradient goes through it."""

    def build(self):
        self.mix = nn.Linear(self.features + 1, self.hidden)

    def blank(self, rows):
        return (torch.zeros(rows, 1, dtype=torch.bool),)

    def step(self, x, memory):
        latch = memory[0] | (x[:, :1] > x[:, 1:2])
        return self.mix(torch.cat([x, latch.to(x.dtype)], -1)).tanh(), (latch,)


class ComplexMemory(Design):
    """A linear recurrence with complex eigenvalues."""

    def build(self):
        self.write = nn.Linear(self.features, 8)
        self.angle, self.decay = nn.Parameter(torch.linspace(0.1, 3.0, 8)), nn.Parameter(torch.full((8,), 2.0))
        self.mix = nn.Linear(16, self.hidden)

    def blank(self, rows):
        return (torch.complex(self.critic.weight.new_zeros(rows, 8), self.critic.weight.new_zeros(rows, 8)),)

    def step(self, x, memory):
        h = memory[0] * torch.polar(self.decay.sigmoid(), self.angle) + self.write(x)
        return self.mix(torch.cat([h.real, h.imag], -1)).tanh(), (h,)


class StateSpace(Design):
    """A short convolution before a selective linear recurrence; both keep a state."""

    def build(self):
        self.taps = nn.Parameter(0.5 * torch.randn(4, self.features))
        self.rate, self.read = nn.Linear(self.features, self.features), nn.Linear(self.features, self.hidden)

    def blank(self, rows):
        weight = self.critic.weight
        return weight.new_zeros(rows, 3, self.features), weight.new_zeros(rows, self.features)

    def step(self, x, memory):
        window = torch.cat([memory[0], x.unsqueeze(1)], 1)
        mixed = (window * self.taps).sum(1)
        rate = nn.functional.softplus(self.rate(mixed))
        state = (-rate).exp() * memory[1] + rate * mixed
        return self.read(state).tanh(), (window[:, 1:], state)


class CachedAttention(Design):
    """Keys and values of up to 16 steps, with the position in the episode."""

    window = 16

    def build(self):
        self.query, self.key, self.value = (nn.Linear(self.features, 8) for _ in range(3))
        self.position, self.out = nn.Embedding(64, 8), nn.Linear(8, self.hidden)

    def blank(self, rows):
        weight = self.critic.weight
        cache = weight.new_zeros(rows, self.window, 8)
        return cache, cache.clone(), torch.zeros(rows, dtype=torch.long)

    def step(self, x, memory):
        keys, values, age = memory
        key = self.key(x) + self.position(age.clamp(max=63))
        keys, values = (
            torch.cat([old[:, 1:], new.unsqueeze(1)], 1) for old, new in ((keys, key), (values, self.value(x)))
        )
        valid = torch.arange(self.window - 1, -1, -1) <= age.unsqueeze(1)
        scores = (self.query(x).unsqueeze(1) * keys).sum(-1).masked_fill(~valid, -torch.inf)
        return self.out((scores.softmax(-1).unsqueeze(-1) * values).sum(1)).tanh(), (keys, values, age + 1)


class GrowingTable(Design):
    """Memory in one tensor per part, which grows when an id is new."""

    def build(self):
        super().build()
        self.table = None

    def load(self, ids):
        if self.table is None or len(self.table[0]) <= max(ids):
            fresh = self.blank(2 * max(ids) + 2)
            if self.table is not None:
                for new, old in zip(fresh, self.table, strict=True):
                    new[: len(old)] = old
            self.table = tuple(m.detach() for m in fresh)
        return tuple(m[ids] for m in self.table)

    def save(self, ids, memory):
        for ours, new in zip(self.table, memory, strict=True):
            ours[ids] = new.detach().to(ours.dtype)

    def get_memory(self):
        rows = range(0 if self.table is None else len(self.table[0]))
        return tuple({row: self.table[part][row].clone() for row in rows} for part in (0, 1))

    def set_memory(self, memory):
        self.table = None
        rows = sorted(memory[0])
        if rows:
            self.load(rows)
            self.save(rows, tuple(torch.stack([part[row] for row in rows]) for part in memory))

    def reset_memory(self):
        self.table = None

    def reset_env_memory(self, env_id):
        if self.table is not None and env_id < len(self.table[0]):
            for part in self.table:
                part[env_id] = 0


class CriticWithoutMemory(Design):
    """Only the actor remembers."""

    def step(self, x, memory):
        h, memory = super().step(x, memory)
        return torch.cat([h, x], -1), memory

    def heads(self, hidden):
        return self.actor(hidden[..., : self.hidden]), self.critic(
            nn.functional.pad(hidden[..., self.hidden :], (0, 4))
        ).squeeze(-1)


class ResetsToALearnedTable(Design):
    """A fresh row begins with learned state, and knows how long its episode is."""

    def build(self):
        self.cell = nn.GRUCell(self.features + 1, self.hidden)
        self.first = nn.Parameter(torch.randn(self.hidden))

    def blank(self, rows):
        return self.first.expand(rows, -1), self.critic.weight.new_zeros(rows, 1)

    def step(self, x, memory):
        h = self.cell(torch.cat([x, (memory[1] / 20).tanh()], -1), memory[0])
        return h, (h, memory[1] + 1)


class DeepTransition(Design):
    """Several layers between one step and the next, with a highway."""

    def build(self):
        self.inner = nn.Sequential(nn.Linear(self.features + 16, 32), nn.GELU(), nn.Linear(32, 32))

    def blank(self, rows):
        return (self.critic.weight.new_zeros(rows, 16),)

    def step(self, x, memory):
        new, gate = self.inner(torch.cat([x, memory[0]], -1)).chunk(2, -1)
        h = torch.lerp(memory[0], new.tanh(), gate.sigmoid())
        return h, (h,)


class LastActionEmbedding(Design):
    """An embedding of the previous action, with an entry of its own for 'none yet'."""

    def build(self):
        self.cell, self.embedding = nn.GRUCell(self.features + 6, self.hidden), nn.Embedding(self.choices + 1, 6)

    def blank(self, rows):
        return self.critic.weight.new_zeros(rows, self.hidden), torch.full((rows,), self.choices)

    def step(self, x, memory):
        h = self.cell(torch.cat([x, self.embedding(memory[1])], -1), memory[0])
        return h, (h, memory[1])

    def after_action(self, memory, action):
        return memory[0], action


class ResidualWrapper(Small):
    """The wrapper's template, with heads that also see the observation's own features."""

    def decode_actions(self, hidden):
        return self.actor(hidden) + 0.1 * self.actor(hidden.tanh()), self.critic(hidden.square())


class Carry(NamedTuple):
    core: tuple[Tensor, Tensor]
    age: Tensor


class NamedState(nn.Module):
    """A plain module whose state is a named tuple with a counter."""

    def __init__(self, env):
        super().__init__()
        self.cell = nn.LSTMCell(5, 16)
        self.actor, self.critic = nn.Linear(17, 4), nn.Linear(17, 1)

    def initial_state(self, rows):
        zeros = self.actor.weight.new_zeros(rows, 16)
        return Carry((zeros, zeros), torch.zeros(rows, 1, dtype=torch.long))

    def forward(self, obs, state):
        h, c = self.cell(obs, state.core)
        hidden = torch.cat([h, (state.age / 10).to(h.dtype).tanh()], -1)
        return self.actor(hidden), self.critic(hidden), Carry((h, c), state.age + 1)


class BatchFirstSequences(nn.Module):
    """A plain module over sequences [B, T, ...] that clears by itself, in packed episodes."""

    def __init__(self, env):
        super().__init__()
        self.gru = nn.GRU(5, 16, batch_first=True)
        self.actor, self.critic = nn.Linear(16, 4), nn.Linear(16, 1)

    def forward(self, obs, state, starts):
        outputs = []
        for t in range(obs.shape[1]):
            state = torch.where(starts[:, t].view(1, -1, 1), 0.0, state)
            out, state = self.gru(obs[:, t : t + 1], state)
            outputs.append(out)
        hidden = torch.cat(outputs, 1)
        return self.actor(hidden), self.critic(hidden).squeeze(-1), state


class DictState(nn.Module):
    """A plain module whose state is a dict of two cores."""

    def __init__(self, env):
        super().__init__()
        self.slow, self.fast = nn.GRUCell(5, 8), nn.GRUCell(5, 8)
        self.actor, self.critic = nn.Linear(16, 4), nn.Linear(16, 1)

    def initial_state(self, rows):
        return {name: self.actor.weight.new_zeros(rows, 8) for name in ("slow", "fast")}

    def forward(self, obs, state):
        fast = self.fast(obs, state["fast"])
        slow = torch.lerp(state["slow"], self.slow(obs, state["slow"]), 0.1)
        hidden = torch.cat([slow, fast], -1)
        return self.actor(hidden), self.critic(hidden), {"slow": slow, "fast": fast}


RIGHT_UNUSUAL = [
    EpisodeMean,
    Reservoir,
    RingBuffer,
    Latch,
    ComplexMemory,
    StateSpace,
    CachedAttention,
    GrowingTable,
    CriticWithoutMemory,
    ResetsToALearnedTable,
    DeepTransition,
    LastActionEmbedding,
    ResidualWrapper,
    NamedState,
    BatchFirstSequences,
    DictState,
]
