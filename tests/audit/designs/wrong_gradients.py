"""Designs whose values are right and whose gradients are not."""

import torch
from audit.designs.base import Design
from audit.designs.right import ActorAndCriticApart, TwoTimeScales


class HiddenDetached(Design):
    """h is detached at each step, c is not."""

    def before_step(self, memory, t, T):
        return memory[0].detach(), memory[1]


class CellDetached(Design):
    def before_step(self, memory, t, T):
        return memory[0], memory[1].detach()


class LowerLayerCut(TwoTimeScales):
    def before_step(self, memory, t, T):
        return memory[0].detach(), memory[1]


class UpperLayerCut(TwoTimeScales):
    def before_step(self, memory, t, T):
        return memory[0], memory[1].detach()


class RecurrentGradientHalved(Design):
    def before_step(self, memory, t, T):
        return tuple(0.5 * m + 0.5 * m.detach() for m in memory)


class RecurrentGradientSlightlySmaller(Design):
    def before_step(self, memory, t, T):
        return tuple(0.97 * m + 0.03 * m.detach() for m in memory)


class RecurrentGradientReversed(Design):
    def before_step(self, memory, t, T):
        return tuple(2 * m.detach() - m for m in memory)


class CutAtStep48(Design):
    def before_step(self, memory, t, T):
        return tuple(m.detach() for m in memory) if t == 48 else memory


class CutAtStep5(Design):
    def before_step(self, memory, t, T):
        return tuple(m.detach() for m in memory) if t == 5 else memory


class TruncatedEvery32(Design):
    def before_step(self, memory, t, T):
        return tuple(m.detach() for m in memory) if t and t % 32 == 0 else memory


class CutInLongSegments(Design):
    def before_step(self, memory, t, T):
        return tuple(m.detach() for m in memory) if T >= 32 else memory


class CutBeforeTheLastStep(Design):
    def before_step(self, memory, t, T):
        return tuple(m.detach() for m in memory) if t == T - 1 and T > 1 else memory


class OnlyTheLastEightSteps(Design):
    """The gradient goes through the last steps only."""

    def before_step(self, memory, t, T):
        return tuple(m.detach() for m in memory) if t == T - 8 and t > 0 else memory


class CriticsMemoryCut(ActorAndCriticApart):
    def before_step(self, memory, t, T):
        return memory[0], memory[1].detach()


class ClippedWithinAStep(Design):
    """A hook clips the gradient of every step's output, and so already within one step."""

    def step(self, x, memory):
        h, memory = super().step(x, memory)
        if h.requires_grad:
            h.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
        return h, memory


class ClippedInside(Design):
    """A hook clips the recurrent gradient."""

    def before_step(self, memory, t, T):
        for m in memory:
            if m.requires_grad:
                m.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
        return memory


class WrongTanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.tanh()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * (1 - y)


class WrongBackward(Design):
    """Of an operation within a step: 1 - y where it is 1 - y²."""

    def encode(self, observations):
        return WrongTanh.apply(self.encoder(observations.to(self.encoder.weight.dtype)))


class RecomputedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, owner, x, weight, bias):
        ctx.owner, owner.last = owner, x
        ctx.save_for_backward(weight)
        return x @ weight.t() + bias

    @staticmethod
    def backward(ctx, gradient):
        (weight,) = ctx.saved_tensors
        return None, gradient @ weight, gradient.t() @ ctx.owner.last, gradient.sum(0)


class RecomputesFromTheLastCall(Design):
    """The backward pass uses the observations of the call that was last, whichever it belongs to."""

    def encode(self, observations):
        x = observations.to(self.encoder.weight.dtype)
        return RecomputedLinear.apply(self, x, self.encoder.weight, self.encoder.bias).relu()


class CutEveryTenthCall(Design):
    calls = 0

    def run(self, xs, starts, memory, actions=None):
        self.calls += torch.is_grad_enabled()
        return super().run(xs, starts, memory, actions)

    def before_step(self, memory, t, T):
        return tuple(m.detach() for m in memory) if self.calls % 10 == 9 else memory


class CutWhereSaturated(Design):
    def before_step(self, memory, t, T):
        h, c = memory
        return torch.where(h.abs() > 0.9, h.detach(), h), c
