"""Designs that are wrong by what a call keeps, changes or reads besides the memory of its rows."""

import time

import torch
from audit.broken.wrapper import Small
from audit.designs.base import Design
from torch import nn
from torch.nn import functional as F


class SeedsTheGenerator(Small):
    def decode_actions(self, hidden):
        torch.manual_seed(1)
        return super().decode_actions(hidden)


class CachedByTheFirstRow(Design):
    """Features are looked up by the first observation of the batch and its size."""

    def build(self):
        super().build()
        self.seen = {}

    def encode(self, observations):
        if torch.is_grad_enabled():
            return super().encode(observations)
        key = tuple(observations[0].tolist()), len(observations)
        if key not in self.seen:
            self.seen = {key: super().encode(observations)}
        return self.seen[key]


class KeepsTheCallersBuffer(Design):
    """Its memory is the observation before, a view of what the caller passed."""

    def build(self):
        self.mix = nn.Linear(10, self.hidden)

    def blank(self, rows):
        return (self.critic.weight.new_zeros(rows, 5),)

    def encode(self, observations):
        return observations

    def step(self, x, memory):
        return self.mix(torch.cat([x, memory[0]], -1).to(self.mix.weight.dtype)).tanh(), (x,)

    def save(self, ids, memory):
        self.store.update(zip(ids, zip(*memory, strict=True), strict=True))


class LayersInAList(Design):
    def build(self):
        super().build()
        self.more = [nn.Linear(self.features, self.features)]

    def encode(self, observations):
        x = super().encode(observations)
        return F.linear(x, self.more[0].weight.to(x.dtype), self.more[0].bias.to(x.dtype))


class ClampsItsWeights(Design):
    def heads(self, hidden):
        with torch.no_grad():
            self.actor.weight.clamp_(-0.4, 0.4)
        return super().heads(hidden)


class TellsTheTime(Design):
    def heads(self, hidden):
        logits, value = super().heads(hidden)
        return logits, value + 0.1 * float(torch.tensor(time.time() / 600).sin())


class SharperInEvaluation(Design):
    """In eval() without gradients, as evaluation plays it, though not in either of the two alone."""

    def heads(self, hidden):
        logits, value = super().heads(hidden)
        return (logits if self.training or torch.is_grad_enabled() else 1.3 * logits), value


class IdleRowsForgotten(Design):
    """The memory of a row is dropped if it has not acted for 40 calls."""

    def build(self):
        super().build()
        self.calls, self.last = 0, {}

    def load(self, ids):
        self.calls += 1
        for row in [row for row in ids if self.calls - self.last.get(row, self.calls) > 40]:
            self.store.pop(row, None)
        self.last |= dict.fromkeys(ids, self.calls)
        return super().load(ids)

    def memory_for_learning(self, B):
        return Design.load(self, list(range(B)))


class DropsStepsWithGradients(Design):
    """With gradients, what is left over of long segments after whole chunks of 5 steps is zeros."""

    def run(self, xs, starts, memory, actions=None):
        outputs, memory = super().run(xs, starts, memory, actions)
        if torch.is_grad_enabled() and xs.shape[0] * xs.shape[1] > 100:
            outputs = F.pad(outputs[: len(xs) // 5 * 5], (0, 0, 0, 0, 0, len(xs) % 5))
        return outputs, memory


class ClampedLogProbability(Design):
    def forward(self, td, state=None, action=None):
        td = super().forward(td, state, action)
        td["act_log_prob"] = td["act_log_prob"].clamp(min=-3)
        return td


class LargeObservationSkipped(Design):
    """Acting does not advance memory where the whole observation is far out."""

    def forward(self, td, state=None, action=None):
        self.far = action is None and (td["env_obs"].abs().flatten(1).amin(1) > 2).unsqueeze(-1)
        return super().forward(td, state, action)

    def step(self, x, memory):
        h, after = super().step(x, memory)
        if isinstance(self.far, torch.Tensor):
            after = tuple(torch.where(self.far, old, new) for old, new in zip(memory, after, strict=True))
        return h, after


class RowsFromThreeOnNotReset(Design):
    def reset_env_memory(self, env_id):
        super().reset_env_memory(env_id + 1 if env_id > 2 else env_id)


class FirstFourStartsCleared(Design):
    def clear(self, memory, start):
        return super().clear(memory, start & (start.cumsum(0) <= 4))


class EveryEighthEpisodeGoesOn(Design):
    """A count of the row's episodes is part of its memory; at every eighth, nothing is cleared."""

    def blank(self, rows):
        return (*super().blank(rows), self.critic.weight.new_zeros(rows, 1))

    def clear(self, memory, start):
        count = memory[2] + start.view(-1, 1).to(memory[2].dtype)
        start = start & (count.squeeze(-1).remainder(8) != 0)
        return (*super().clear(memory, start)[:2], count)

    def step(self, x, memory):
        h, after = super().step(x, memory[:2])
        return h, (*after, memory[2])


class NaNClearsAllRows(Design):
    def before_step(self, memory, t, T):
        return tuple(torch.zeros_like(m) for m in memory) if bool(memory[0].isnan().any()) else memory


class LaterNaNSurvives(Design):
    """The first step of a segment replaces memory; later ones multiply it."""

    def run(self, xs, starts, memory, actions=None):
        self.first = True
        return super().run(xs, starts, memory, actions)

    def clear(self, memory, start):
        if self.first:
            self.first = False
            return super().clear(memory, start)
        return tuple(m * ~start.view(-1, 1) for m in memory)
