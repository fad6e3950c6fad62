"""The LSTM kernels equal a plain loop in float64, and give a row the same bits in any batch."""

import pytest
import torch
from support.plain_loop import STARTS, reference
from torch import Tensor

from engram.agent.recurrent.lstm import LSTM
from engram.native import library
from engram.native.lstm import usable

if library.kernels() is None:
    pytest.skip("there is no compiler, or the kernels are switched off", allow_module_level=True)


def case(steps: int, rows: int, inputs: int, hidden: int, layers: int = 2) -> tuple[LSTM, Tensor, Tensor]:
    torch.manual_seed(0)
    core = LSTM(inputs, hidden, layers)
    for name, parameter in core.named_parameters():
        torch.nn.init.normal_(parameter, std=0.5 if "bias" in name else hidden**-0.5)
    return core, torch.randn(steps, rows, inputs), torch.randn(rows, layers, 2 * hidden)


def results(run, core: LSTM, inputs: Tensor, memory: Tensor, starts: Tensor) -> list[Tensor]:
    """Outputs, last memory and all gradients of a loss of them."""
    leaves = [inputs.clone().requires_grad_(), memory.clone().requires_grad_()]
    outputs, last = run(*leaves, starts)
    weight = torch.linspace(-1, 1, outputs.numel(), dtype=outputs.dtype).view_as(outputs)
    loss = (outputs * weight).sum() + last.pow(3).sum()
    return [outputs, last, *torch.autograd.grad(loss, [*leaves, *core.parameters()])]


def assert_right(core: LSTM, inputs: Tensor, memory: Tensor, starts: Tensor) -> None:
    ours = results(core, core, inputs, memory, starts)
    precise = LSTM(core.input_size, core.hidden_size, core.num_layers).double()
    precise.load_state_dict(core.state_dict())
    doubles = (inputs.double(), memory.double())
    theirs = results(lambda *arguments: reference(precise, *arguments), precise, *doubles, starts)
    for mine, other in zip(ours, theirs, strict=True):
        scale = other.abs().max().clamp(min=1).item()
        torch.testing.assert_close(mine.double(), other, rtol=1e-5, atol=3e-6 * scale)


@pytest.mark.parametrize("starts", STARTS.values(), ids=STARTS.keys())
def test_outputs_and_gradients_equal_those_of_a_plain_loop(instruction_set: str, starts: Tensor) -> None:
    core, inputs, memory = case(*starts.shape, inputs=6, hidden=20)
    assert usable(inputs)
    assert_right(core, inputs, memory, starts)


@pytest.mark.parametrize("rows", [1, 3, 17, 150])
@pytest.mark.parametrize("hidden", [1, 7, 33, 100])
def test_any_size_is_right(instruction_set: str, hidden: int, rows: int) -> None:
    core, inputs, memory = case(4, rows, 2 * hidden + 1, hidden)
    assert_right(core, inputs, memory, torch.rand(4, rows) < 0.2)


LAYOUTS = {
    "rows first": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "with gaps": lambda x: torch.cat([x, x], 2)[..., : x.shape[2]],
    "numbers of a row apart": lambda x: x.transpose(0, 2).contiguous().transpose(0, 2),
    "one row for all": lambda x: x[:, :1].expand_as(x),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_inputs_may_be_strided_with_the_same_gradients(instruction_set: str, layout) -> None:
    core, inputs, memory = case(5, 9, 24, 20)
    starts, moved = torch.rand(5, 9) < 0.2, layout(inputs)
    weight = torch.randn(5, 9, 20)
    found = []
    for x in (moved.contiguous(), moved):
        x = x.detach().requires_grad_()
        outputs, _ = core(x, memory, starts)
        found.append((outputs.detach(), *torch.autograd.grad((outputs * weight).sum(), [x, *core.parameters()])))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("hidden", [33, 128, 260])  # threads share the weights of the last
def test_acting_has_the_bits_of_learning_for_any_rows_and_threads(
    instruction_set: str, hidden: int, threads: int
) -> None:
    steps, rows = 6, 151
    core, inputs, memory = case(steps, rows, 40, hidden)
    starts = torch.rand(steps, rows) < 0.2
    outputs, last = core(inputs, memory, starts)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for part in (slice(0, 1), slice(1, 3), slice(3, 20), slice(20, 151), slice(0, 151, 7)):
            now = memory[part]
            with torch.no_grad():
                for t in range(steps):
                    output, now = core(inputs[t : t + 1, part], now, starts[t : t + 1, part])
                    assert torch.equal(output[0], outputs[t, part])
            assert torch.equal(now, last[part])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("hidden", [24, 260])  # threads share the weights of the last
def test_the_same_threads_give_the_same_gradients(instruction_set: str, hidden: int) -> None:
    core, inputs, memory = case(5, 40, 30, hidden)
    starts = torch.rand(5, 40) < 0.2
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (2, 2, 1):
            torch.set_num_threads(threads)
            found.append(results(core, core, inputs, memory, starts))
    finally:
        torch.set_num_threads(before)
    first, second, alone = found
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    for mine, one in zip(first, alone, strict=True):
        torch.testing.assert_close(mine, one, rtol=1e-4, atol=1e-4)  # sums are added up in another order


def test_nan_ends_at_an_episode_start_and_stays_in_its_row(instruction_set: str) -> None:
    core, inputs, memory = case(5, 7, 9, 10)
    inputs[1, 2] = torch.nan
    memory[4] = torch.nan
    starts = torch.zeros(5, 7, dtype=torch.bool)
    starts[3, 2] = starts[0, 4] = True
    outputs, last = core(inputs, memory, starts)
    assert outputs[1:3, 2].isnan().all()
    assert outputs[:, [0, 1, 3, 4, 5, 6]].isfinite().all()
    assert outputs[3:, 2].isfinite().all()
    assert last.isfinite().all()


def test_no_gradient_crosses_an_episode_start(instruction_set: str) -> None:
    core, inputs, memory = case(6, 5, 9, 10)
    starts = torch.zeros(6, 5, dtype=torch.bool)
    starts[3, 2] = True
    inputs.requires_grad_()
    outputs, _ = core(inputs, memory, starts)
    (gradient,) = torch.autograd.grad(outputs[3:, 2].sum(), inputs)
    assert (gradient[:3] == 0).all()
    assert (gradient[3, 2] != 0).any()


def test_steps_and_rows_may_have_any_memory_order(instruction_set: str) -> None:
    core, inputs, memory = case(5, 7, 9, 10)
    starts = torch.rand(5, 7) < 0.3
    plain = results(core, core, inputs, memory, starts)
    by_rows = inputs.transpose(0, 1).contiguous().transpose(0, 1)
    starts = starts.t().contiguous().t()
    outputs, _ = core(by_rows, memory, starts)
    assert torch.equal(outputs, plain[0])
    (gradient,) = torch.autograd.grad(outputs.sum(), [core.weight_hh_l0])  # of an expanded one
    with library.without_kernels():
        (expected,) = torch.autograd.grad(core(inputs, memory, starts)[0].sum(), [core.weight_hh_l0])
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)


def test_pytorch_takes_over_for_other_dtypes_and_devices() -> None:
    assert usable(torch.zeros(1, 1, 1))
    assert not usable(torch.zeros(1, 1, 1, dtype=torch.double))
    assert not usable(torch.zeros(1, 1, 1, device="meta"))
    with library.without_kernels():
        assert not usable(torch.zeros(1, 1, 1))


def test_kernels_and_pytorch_agree() -> None:
    core, inputs, memory = case(20, 30, 16, 40)
    starts = torch.rand(20, 30) < 0.05
    native = results(core, core, inputs, memory, starts)
    with library.without_kernels():
        pure = results(core, core, inputs, memory, starts)
    for mine, other in zip(native, pure, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5 * other.abs().max().clamp(min=1).item())


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("layers", [1, 2])
def test_memory_may_be_updated_in_place(instruction_set, steps, layers):
    core = LSTM(12, 20, layers)
    x, starts = torch.randn(steps, 140, 12), torch.rand(steps, 140) < 0.3
    everybody = torch.randn(150, layers, 40)
    memory, untouched = everybody[3:143], everybody.clone()
    with torch.no_grad():
        outputs, after = core(x, memory.clone(), starts)
        in_place, same = core(x, memory, starts, memory)
    assert same is memory
    assert torch.equal(in_place, outputs)
    assert torch.equal(memory, after)
    assert torch.equal(everybody[:3], untouched[:3])
    assert torch.equal(everybody[143:], untouched[143:])
