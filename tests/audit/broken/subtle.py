"""Faults that hide: they show only after many steps, in one call of several, or with a mask turned around."""

import torch
from audit.broken.alone import Alone
from audit.broken.case import Case


class MaskUpsideDown(Alone):
    """Memory is multiplied with the flags of starts, not with their opposite."""

    def clear(self, h, c, start):
        return h * start, c * start


class GradientCutEveryEightSteps(Alone):
    def remember(self, features, h, c, starts):
        parts = []
        for first in range(0, len(features), 8):
            part = slice(first, first + 8)
            outputs, h, c = super().remember(features[part], h.detach(), c.detach(), starts[part])
            parts.append(outputs)
        return torch.cat(parts), h, c


class EveryLessonKept(Alone):
    """Only learning calls leave something behind."""

    def judge(self, td, actions, logits, value):
        self.__dict__.setdefault("values", []).append(value.detach())
        return super().judge(td, actions, logits, value)


class ALessonInTheNext(Alone):
    """A learning call continues from the graph of the one before."""

    def judge(self, td, actions, logits, value):
        before = self.__dict__.get("average", torch.zeros(()))
        self.average = 0.9 * before + 0.1 * value.mean()
        return super().judge(td, actions, logits, value + 1e-9 * self.average)


class AKeyForEveryStepOfARollout(Alone):
    """Grows until it is reset."""

    def store(self, ids, h, c):
        super().store(ids, h, c)
        steps = self.__dict__.setdefault("steps", {})
        steps[len(steps)] = "a note"

    def reset_memory(self):
        super().reset_memory()
        self.steps = {}


class HiddenAndCellSwapped(Alone):
    def store(self, ids, h, c):
        super().store(ids, c, h)


class LeakyMemory(Alone):
    """What is stored is a little less than what the LSTM gave."""

    def store(self, ids, h, c):
        super().store(ids, 0.99 * h, 0.99 * c)


class FlagsOfTheStepBefore(Alone):
    def starts(self, td, B, T):
        now = super().starts(td, B, T)
        if T > 1:
            return now
        before, self.before = self.__dict__.get("before"), now
        return before if before is not None and before.shape == now.shape else now & False

    def reset_memory(self):
        super().reset_memory()
        self.before = None


class StaleMemory(Alone):
    """Gives what it gave the first time."""

    def get_memory(self):
        self.given = self.__dict__.get("given") or super().get_memory()
        return self.given


class HalfTheDigits(Alone):
    def act(self, td, logits, value):
        td = super().act(td, logits, value)
        return td.set("act_log_prob", td["act_log_prob"].bfloat16())


class OutputsNotTurnedBack(Alone):
    """Time first into the heads, and row first out of them."""

    def remember(self, features, h, c, starts):
        outputs, h, c = super().remember(features, h, c, starts)
        T, B = outputs.shape[:2]
        return outputs.reshape(B, T, -1).transpose(0, 1), h, c


class AnotherHeadWithoutGradients(Alone):
    """Acting in a rollout, which is without gradients, is not what is learned from."""

    def act(self, td, logits, value):
        return super().act(td, logits if torch.is_grad_enabled() else 2 * logits, value)


AGAIN = {"detachment", "graph_growth", "gradient_boundary", "gradient_health", "weight_clipping"}
CASES = [
    Case(
        MaskUpsideDown,
        {"memory_used", "boundary_acting", "boundary_learning", "gradient_boundary"},
        "the mask is inverted",
    ),
    Case(GradientCutEveryEightSteps, {"horizon"}, "cut before step 8: it reaches 3 steps back"),
    Case(EveryLessonKept, {"graph_growth"}, "a learning call adds 1 live tensors"),
    Case(ALessonInTheNext, AGAIN, "operations of the learning call before"),
    Case(AKeyForEveryStepOfARollout, {"graph_growth"}, "1 entries"),
    Case(HiddenAndCellSwapped, {"replay"}, "learning differs from acting"),
    Case(LeakyMemory, {"replay"}),
    Case(FlagsOfTheStepBefore, {"boundary_acting", "row_isolation", "replay"}, "too late"),
    Case(StaleMemory, {"memory_interface", "replay"}, "gives the same as before"),
    Case(HalfTheDigits, {"td_fields", "replay", "action_log_prob"}, "bfloat16"),
    Case(
        OutputsNotTurnedBack,
        {"row_isolation", "causality", "boundary_learning", "gradient_boundary", "replay"},
    ),
    Case(AnotherHeadWithoutGradients, {"modes", "replay"}, "no_grad"),
]
