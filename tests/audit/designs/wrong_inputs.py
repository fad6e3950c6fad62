"""Designs that are wrong only for certain observations, rows, copies, or sizes of memory."""

from typing import ClassVar

import torch
from audit.designs.base import Design
from torch import nn


class KnowsItsCall(Design):
    """Right: a step knows whether it belongs to a learning call."""

    learning = False

    def run(self, xs, starts, memory, actions=None):
        self.learning = actions is not None
        return super().run(xs, starts, memory, actions)


class RepeatedObservationSkipped(KnowsItsCall):
    """Acting does not advance memory if a row's observation is the one before."""

    def blank(self, rows):
        return (*super().blank(rows), self.critic.weight.new_full((rows, self.features), -1.0))

    def step(self, x, memory):
        h, c = self.cell(x, memory[:2])
        if not self.learning:
            same = (x == memory[2]).all(-1, keepdim=True)
            h, c = torch.where(same, memory[0], h), torch.where(same, memory[1], c)
        return h, (h, c, x.detach())


class ZeroObservationIsPadding(KnowsItsCall):
    """Learning takes a step of zeros for padding, and leaves memory as it was."""

    def forward(self, td, state=None, action=None):
        self.padding = (td["env_obs"].flatten(td.batch_dims) == 0).all(-1)
        self.t = 0
        return super().forward(td, state, action)

    def step(self, x, memory):
        h, after = super().step(x, memory)
        if self.learning:
            padding = self.padding[:, self.t].unsqueeze(-1)
            after = tuple(torch.where(padding, old, new) for old, new in zip(memory, after, strict=True))
            self.t += 1
        return h, after


class LargeMemoryCleared(Design):
    """Acting clears a memory that has grown large."""

    def save(self, ids, memory):
        large = memory[1].abs().amax(-1, keepdim=True) > 4
        super().save(ids, tuple(torch.where(large, 0.0, m) for m in memory))


class HookOnRecurrentWeights(Design):
    def build(self):
        super().build()
        self.cell.weight_hh.register_hook(lambda gradient: 0.1 * gradient)


class EpsilonGreedy(Design):
    """Every tenth action is uniform; its log-probability is the network's."""

    def draw(self, log_probs):
        return super().draw((0.9 * log_probs.exp() + 0.1 / log_probs.shape[-1]).log())


class StoreOfTheClass(Design):
    """One store for all instances."""

    shared: ClassVar[dict] = {}

    @property
    def store(self):
        return self.shared

    @store.setter
    def store(self, value):
        self.shared.clear()
        self.shared.update(value)


class OutputBufferReused(Design):
    """Acting writes its outputs into tensors that the next call overwrites."""

    def forward(self, td, state=None, action=None):
        td = super().forward(td, state, action)
        if action is None:
            buffers = self.__dict__.setdefault("buffers", {})
            for name in ("values", "act_log_prob"):
                value = td[name].detach()
                if name not in buffers or buffers[name].shape != value.shape:
                    buffers[name] = value.clone()
                td[name] = buffers[name].copy_(value)
        return td


class LoneRowsNotStored(Design):
    def save(self, ids, memory):
        if len(ids) > 1:
            super().save(ids, memory)


class NewRowsBeginWithTheMean(Design):
    """Unknown rows begin with the mean of all that are known."""

    def load(self, ids):
        if not self.store:
            return super().load(ids)
        mean = tuple(torch.stack(parts).mean(0) for parts in zip(*self.store.values(), strict=True))
        return tuple(torch.stack(parts) for parts in zip(*(self.store.get(i, mean) for i in ids), strict=True))


class RowZeroNotReset(Design):
    def reset_env_memory(self, env_id):
        if env_id:
            super().reset_env_memory(env_id)


class IdsAsHalf(Design):
    """Ids above 2048 are rounded."""

    def ids(self, td, B):
        return [int(i) for i in (td["training_env_id_start"][0] + torch.arange(B)).half().tolist()]


class AgeAsByte(Design):
    """The age of an episode overflows after 127 acting steps."""

    def build(self):
        self.cell = nn.GRUCell(self.features + 1, self.hidden)

    def blank(self, rows):
        zeros = self.critic.weight.new_zeros(rows, self.hidden)
        return zeros, zeros[:, :1].clone()

    def step(self, x, memory):
        h = self.cell(torch.cat([x, memory[1] / 50], -1), memory[0])
        return h, (h, memory[1] + 1)

    def save(self, ids, memory):
        super().save(ids, (memory[0], memory[1].to(torch.int8).to(memory[1].dtype)))


class CutByTheBatch(Design):
    """The gradient is cut at a step where features are larger than the batch's mean."""

    def step(self, x, memory):
        largest = x.abs().amax(-1, keepdim=True)
        memory = tuple(torch.where(largest > 1.3 * largest.mean(), m.detach(), m) for m in memory)
        return super().step(x, memory)
