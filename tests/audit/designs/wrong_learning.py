"""Designs whose learning is another computation than acting, or whose gradient is not that of it."""

import torch
from audit.designs.base import Design
from audit.designs.right import WindowAttention
from torch import nn


class OnlyTheLastInputLearns(Design):
    """Features get a gradient at the last step only."""

    def run(self, xs, starts, memory, actions=None):
        return super().run(torch.cat([xs[:-1].detach(), xs[-1:]]), starts, memory, actions)


class FirstHalfWithoutGradient(Design):
    """A burn-in that nobody declared."""

    def before_step(self, memory, t, T):
        return tuple(m.detach() for m in memory) if T > 1 and t == T // 2 else memory


class CutWhereAnyRowStarts(Design):
    """Where one row starts an episode, the gradient of all rows is cut; their values are right."""

    def clear(self, memory, start):
        memory = super().clear(memory, start)
        return tuple(m.detach() for m in memory) if bool(start.any()) and not bool(start.all()) else memory


class RecurrentWeightsFrozen(Design):
    """The recurrent weights are used without their gradient."""

    def step(self, x, memory):
        weights = {"weight_hh": self.cell.weight_hh.detach(), "bias_hh": self.cell.bias_hh.detach()}
        h, c = torch.func.functional_call(self.cell, weights, (x, memory))
        return h, (h, c)


class GradientGrows(Design):
    def before_step(self, memory, t, T):
        return tuple(1.1 * m - 0.1 * m.detach() for m in memory)


class UnitGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / (gradient.norm() + 1e-6)


class GradientNormalised(Design):
    def before_step(self, memory, t, T):
        return tuple(UnitGradient.apply(m) for m in memory)


class EntropyWithoutGradient(Design):
    def forward(self, td, state=None, action=None):
        td = super().forward(td, state, action)
        if action is not None:
            td["entropy"] = td["entropy"].detach()
        return td


class ValueFromStaleFeatures(Design):
    """The critic adds the last hidden state of the call before, whichever rows it had."""

    def heads(self, hidden):
        logits, value = super().heads(hidden)
        last = self.__dict__.get("last")
        if last is not None:
            value = value + 0.1 * last.mean()
        self.last = hidden.detach()
        return logits, value


class Batchnormed(Design):
    def build(self):
        super().build()
        self.norm = nn.BatchNorm1d(self.features)

    def encode(self, observations):
        return self.norm(super().encode(observations))


class DropsOut(Design):
    def encode(self, observations):
        return nn.functional.dropout(super().encode(observations), 0.1, self.training)


class NormaliserLearnsInForward(Design):
    """Running mean and spread of observations, updated in every call."""

    def build(self):
        super().build()
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("count", torch.ones(()))

    def encode(self, observations):
        self.count = self.count + len(observations)
        self.mean = self.mean + (observations - self.mean).sum(0).detach() / self.count
        return super().encode(observations - self.mean)


class NormaliserInAPlainAttribute(Design):
    """The same outside the state dict, and only when learning."""

    mean = 0.0

    def encode(self, observations):
        if self.__dict__.get("learning"):
            self.mean = 0.9 * self.mean + 0.1 * float(observations.mean().detach())
        return super().encode(observations - self.mean)

    def forward(self, td, state=None, action=None):
        self.learning = action is not None
        return super().forward(td, state, action)


class ForgetsInEvaluation(Design):
    def load(self, ids):
        return super().load(ids) if self.training else self.blank(len(ids))


class Bidirectional(Design):
    """Learning also runs backwards through the segment."""

    def build(self):
        super().build()
        self.back = nn.GRU(self.features, self.hidden)

    def run(self, xs, starts, memory, actions=None):
        outputs, memory = super().run(xs, starts, memory, actions)
        return outputs + self.back(xs.flip(0))[0].flip(0), memory


class LooksAhead(WindowAttention):
    """Attention over the whole segment without a causal mask."""

    def run(self, xs, starts, memory, actions=None):
        outputs, memory = super().run(xs, starts, memory, actions)
        if len(xs) == 1:
            return outputs, memory
        scores = torch.einsum("tbf,sbf->tsb", self.query(xs), self.key(xs)).softmax(1)
        return outputs + 0.1 * torch.einsum("tsb,sbf->tbf", scores, self.out(xs)), memory


class LastOutputForAll(Design):
    def run(self, xs, starts, memory, actions=None):
        outputs, memory = super().run(xs, starts, memory, actions)
        return outputs[-1:].expand_as(outputs), memory


class RowsAndStepsSwapped(Design):
    """view where a transpose is needed."""

    def run(self, xs, starts, memory, actions=None):
        T, B = xs.shape[:2]
        return super().run(xs.transpose(0, 1).reshape(T, B, -1), starts, memory, actions)


class ActionsOfTheNextStep(Design):
    """Learning judges each action one step late."""

    def forward(self, td, state=None, action=None):
        if action is None:
            return super().forward(td)
        return super().forward(td, state, action.roll(1, 1))


class Tempered(Design):
    """Learning divides the logits by a temperature that acting does not have."""

    def heads(self, hidden):
        logits, value = super().heads(hidden)
        return (logits / 0.9 if hidden.dim() == 3 else logits), value


class ChunksOf16(Design):
    """Long segments are learned in chunks, each from an empty memory."""

    def before_step(self, memory, t, T):
        return self.blank(len(memory[0])) if t and t % 16 == 0 else memory


class ChunksOf16FromDetached(Design):
    """Long segments are learned in chunks: the values are right, the gradient ends at each."""

    def before_step(self, memory, t, T):
        return tuple(m.detach() for m in memory) if t and t % 16 == 0 else memory


class TwoStepsAtOnce(Design):
    """Learning skips the recurrence at odd steps of segments longer than 40."""

    def run(self, xs, starts, memory, actions=None):
        if len(xs) <= 40:
            return super().run(xs, starts, memory, actions)
        outputs, after = super().run(xs[::2], starts[::2], memory, None if actions is None else actions[::2])
        return outputs.repeat_interleave(2, 0)[: len(xs)], after


class NeverRemembers(Design):
    def load(self, ids):
        return self.blank(len(ids))

    def before_step(self, memory, t, T):
        return self.blank(len(memory[0]))


class ClipsValuesWhenLearning(Design):
    def heads(self, hidden):
        logits, value = super().heads(hidden)
        return logits, value.clamp(-0.2, 0.2) if hidden.dim() == 3 else value


class ClampsLogitsWhenLearning(Design):
    """At a size that the logits of a new policy do not have."""

    def heads(self, hidden):
        logits, value = super().heads(hidden)
        return logits.clamp(-4, 4) if hidden.dim() == 3 else logits, value


class SoftensInBigBatches(Design):
    """From 500 rows and steps on, learning runs in half precision."""

    def heads(self, hidden):
        if hidden.dim() == 3 and hidden.shape[:2].numel() >= 500:
            hidden = hidden.half().to(hidden.dtype)
        return super().heads(hidden)


class AgesOffByOne(Design):
    """In a segment, what is remembered is weighted by its age plus one."""

    def blank(self, rows):
        zeros = self.critic.weight.new_zeros(rows, 4, self.hidden)
        return zeros, zeros[..., 0].clone()

    def build(self):
        self.key = nn.Linear(self.features, self.hidden)
        self.by_age = nn.Parameter(torch.randn(5))

    def before_step(self, memory, t, T):
        self.off = int(T > 1)
        return memory

    def step(self, x, memory):
        window, filled = memory
        weights = filled * self.by_age[torch.arange(4) + self.off]
        new = self.key(x)
        h = torch.tanh(new + (weights.unsqueeze(-1) * window).sum(1))
        ones = torch.ones_like(filled[:, :1])
        return h, (torch.cat([new.unsqueeze(1), window[:, :-1]], 1), torch.cat([ones, filled[:, :-1]], 1))


class AllRowsDetachedAtAStart(Design):
    def clear(self, memory, start):
        memory = super().clear(memory, start)
        return tuple(m.detach() for m in memory) if bool(start.any()) else memory
