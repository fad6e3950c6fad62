"""The LRU kernels equal the recurrence in float64."""

import pytest
import torch
from support.plain_loop import STARTS
from torch import Tensor

from engram.agent.recurrent.lru import LRU, fused_recurrence, recurrence
from engram.native import library, lru

if library.kernels() is None:
    pytest.skip("there is no compiler, or the kernels are switched off", allow_module_level=True)


def case(steps: int, rows: int, units: int) -> list[Tensor]:
    """Drive, first state, and the real and imaginary parts of the factors of units."""
    torch.manual_seed(0)
    keep, angle = torch.rand(units) * 0.2 + 0.79, torch.rand(units) * 3
    return [torch.randn(steps, rows, 2 * units), torch.randn(rows, 2 * units), keep * angle.cos(), keep * angle.sin()]


def states_and_gradients(run, tensors: list[Tensor], starts: Tensor) -> list[Tensor]:
    drive, first, real, imag = leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    states = run(drive, first, starts, real, imag)
    weight = torch.linspace(-1, 1, states.numel(), dtype=states.dtype).view_as(states)
    return [states, *torch.autograd.grad((states * weight).sum(), leaves)]


def assert_right(tensors: list[Tensor], starts: Tensor) -> None:
    ours = states_and_gradients(fused_recurrence, tensors, starts)
    theirs = states_and_gradients(recurrence, [tensor.double() for tensor in tensors], starts)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=1e-5, atol=3e-6 * other.abs().max().clamp(min=1).item())


@pytest.mark.parametrize("starts", STARTS.values(), ids=STARTS.keys())
def test_states_and_gradients_equal_those_of_a_plain_loop(starts: Tensor) -> None:
    assert_right(case(*starts.shape, units=20), starts)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("units", [1, 31, 32, 33, 128])
def test_any_number_of_units_is_right(units: int, rows: int) -> None:
    assert_right(case(7, rows, units), torch.rand(7, rows) < 0.2)


def test_several_threads_give_the_same_bits() -> None:
    tensors, starts, threads = case(64, 16, 100), torch.rand(64, 16) < 0.1, torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = states_and_gradients(fused_recurrence, tensors, starts)
        torch.set_num_threads(3)
        together = states_and_gradients(fused_recurrence, tensors, starts)
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


def test_a_nan_in_memory_does_not_survive_a_start() -> None:
    drive, first, real, imag = case(3, 2, 8)
    starts = torch.tensor([[True, False], [False, False], [False, True]])
    states = lru.forward(drive, first.fill_(float("nan")), starts, real, imag)
    assert states[:, 0].isfinite().all()
    assert states[2, 1].isfinite().all()
    assert states[:2, 1].isnan().all()


def test_a_core_without_kernels_gives_the_same() -> None:
    torch.manual_seed(0)
    core, inputs, starts = LRU(5, 12, 2), torch.randn(9, 4, 5), torch.rand(9, 4) < 0.2
    memory = torch.randn(4, *core.memory_shape)
    with_kernels = core(inputs, memory, starts)
    with library.without_kernels():
        without = core(inputs, memory, starts)
    torch.testing.assert_close(with_kernels, without, rtol=1e-5, atol=1e-6)


def test_wrong_sizes_raise_before_the_kernel_runs() -> None:
    drive, first, real, imag = case(3, 2, 8)
    with pytest.raises(ValueError, match=r"LRU: first must be \[2, 16\]"):
        lru.forward(drive, first[:1], torch.zeros(3, 2, dtype=torch.bool), real, imag)
