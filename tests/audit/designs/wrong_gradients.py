"""Designs whose values are right and whose gradients are not."""

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
