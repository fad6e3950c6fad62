"""Policies with the memory bugs that Engram's audit looks for, for `bench/story.py`. Never train with them."""

# T steps, B rows, I input size, L layers, S floats of memory per layer

from typing import Any, ClassVar

import torch
from torch import Tensor

from engram.agent.policies.fast import Fast
from engram.agent.recurrent.lstm import LSTM


class NeverResetLSTM(LSTM):
    """Memory runs on into the next episode, in acting and in learning."""

    def forward(self, inputs_TBI: Tensor, memory_BLS: Tensor, starts_TB: Tensor, out: Tensor | None = None) -> Any:
        return super().forward(inputs_TBI, memory_BLS, torch.zeros_like(starts_TB), out)


class ResetAtSegmentStartsLSTM(LSTM):
    """Acting resets memory; learning does so only at the first step of a segment."""

    def forward(self, inputs_TBI: Tensor, memory_BLS: Tensor, starts_TB: Tensor, out: Tensor | None = None) -> Any:
        first_TB = starts_TB & (torch.arange(len(starts_TB), device=starts_TB.device) == 0).unsqueeze(1)
        return super().forward(inputs_TBI, memory_BLS, first_TB, out)


class WrongRowsLSTM(LSTM):
    """An acting row reads the memory of its neighbour."""

    def forward(self, inputs_TBI: Tensor, memory_BLS: Tensor, starts_TB: Tensor, out: Tensor | None = None) -> Any:
        read_BLS = memory_BLS.roll(1, dims=0) if len(inputs_TBI) == 1 else memory_BLS
        return super().forward(inputs_TBI, read_BLS, starts_TB, out)


class ZeroStartLSTM(LSTM):
    """Learning starts every segment from zero, although acting carried memory into it."""

    def forward(self, inputs_TBI: Tensor, memory_BLS: Tensor, starts_TB: Tensor, out: Tensor | None = None) -> Any:
        read_BLS = torch.zeros_like(memory_BLS) if len(inputs_TBI) > 1 else memory_BLS
        return super().forward(inputs_TBI, read_BLS, starts_TB, out)


class UndetachedLSTM(LSTM):
    """Learning starts from the memory that the previous minibatch ended with, and keeps its graph."""

    last: Tensor | None = None

    def forward(self, inputs_TBI: Tensor, memory_BLS: Tensor, starts_TB: Tensor, out: Tensor | None = None) -> Any:
        learning = len(inputs_TBI) > 1 and torch.is_grad_enabled()
        if learning and self.last is not None and self.last.shape == memory_BLS.shape:
            memory_BLS = self.last
        outputs, after = super().forward(inputs_TBI, memory_BLS, starts_TB, out)
        if learning:
            self.last = after
        return outputs, after


class Right(Fast):
    """`fast`, made in the same way as the faulty ones."""

    core_class: ClassVar[type[LSTM]] = LSTM

    def __init__(self, env: object, **kwargs: Any) -> None:
        super().__init__(env, **kwargs)
        self._set_core(self.core_class(self.input_size, self.hidden_size, self.num_layers))


class Undetached(Right):
    core_class = UndetachedLSTM


class NeverReset(Right):
    core_class = NeverResetLSTM


class ResetAtSegmentStarts(Right):
    core_class = ResetAtSegmentStartsLSTM


class WrongRows(Right):
    core_class = WrongRowsLSTM


class ZeroStart(Right):
    core_class = ZeroStartLSTM


FAULTS: dict[str, type[Right]] = {
    "right": Right,
    "undetached": Undetached,
    "never reset": NeverReset,
    "reset only at segment starts": ResetAtSegmentStarts,
    "wrong rows": WrongRows,
    "zero start state": ZeroStart,
}
