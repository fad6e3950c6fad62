"""NaN and infinity: the kernels of the cores agree with their readable definitions, in acting and in learning."""

import math

import pytest
import torch
from torch import Tensor

from engram.agent.recurrent.core import Core
from engram.agent.recurrent.gru import GRU
from engram.agent.recurrent.lstm import LSTM

# T steps, B rows, I input size, H hidden size
T, B, I, H = 5, 6, 7, 8  # noqa: E741
BAD = {"nan": math.nan, "infinity": math.inf, "minus infinity": -math.inf, "largest": 3e38}


class ReadableLSTM(LSTM):
    kernel = None


class ReadableGRU(GRU):
    kernel = None


def bad_case(value: float, core: Core) -> tuple[Tensor, Tensor, Tensor]:
    """Rows 0 to 2 have a bad input, a bad memory, and both with an episode start after; rows 3 to 5 are good."""
    torch.manual_seed(1)
    inputs, memory = (
        torch.randn(T, B, I),
        core(torch.randn(1, B, I), core.initial_memory(B), torch.ones(1, B).bool())[1],
    )
    starts = torch.zeros(T, B, dtype=torch.bool)
    inputs[1, 0, 3] = inputs[1, 2, 0] = value
    memory[1, 0, 2] = memory[2, 1, 1] = value
    starts[3, 2] = True
    return inputs, memory, starts


@pytest.mark.parametrize("value", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize(("kernel", "readable"), [(LSTM, ReadableLSTM), (GRU, ReadableGRU)])
@pytest.mark.parametrize("learning", [False, True])
def test_a_kernel_and_its_definition_agree_on_bad_numbers(kernel, readable, value, learning) -> None:
    torch.manual_seed(0)
    fast, plain = kernel(I, H, 2), readable(I, H, 2)
    plain.load_state_dict(fast.state_dict())
    inputs, memory, starts = bad_case(value, plain)
    with torch.set_grad_enabled(learning):
        (ours, our_last), (theirs, their_last) = (core(inputs, memory, starts) for core in (fast, plain))
    for mine, other in ((ours, theirs), (our_last, their_last)):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert theirs[:, 3:].isfinite().all()
    assert theirs[3:, 2].isfinite().all()  # nothing bad crosses an episode start
