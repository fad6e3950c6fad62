"""The recurrent cores: their layers' definitions against PyTorch's own, their kernels against the definitions."""

import pytest
import torch
from support.plain_loop import ROWS, STARTS, STEPS, reference, starts_at
from torch import Tensor, nn

from engram.agent.recurrent import CORES, make_core
from engram.agent.recurrent.attention import Attention
from engram.agent.recurrent.core import Core
from engram.agent.recurrent.lru import LRU, recurrence
from engram.agent.recurrent.lstm import LSTM
from engram.settings import UserError

INPUT, HIDDEN = 6, 7
WITH_KERNEL = [name for name, core in CORES.items() if core.kernel is not None]


def make(name: str, layers: int = 2) -> tuple[Core, Tensor, Tensor]:
    torch.manual_seed(3)
    core = CORES[name](INPUT, HIDDEN, layers).double()
    inputs = torch.randn(STEPS, ROWS, INPUT, dtype=torch.double)
    return core, inputs, torch.randn(ROWS, *core.memory_shape, dtype=torch.double)


def results(run, core: Core, inputs: Tensor, memory: Tensor, starts: Tensor) -> list[Tensor]:
    """Outputs, last memory and the gradients of a loss of both."""
    leaves = [inputs.clone().requires_grad_(), memory.clone().requires_grad_(), *core.parameters()]
    outputs, last = run(*leaves[:2], starts)
    weight = torch.linspace(-1, 1, outputs.numel(), dtype=outputs.dtype).view_as(outputs)
    return [outputs, last, *torch.autograd.grad((outputs * weight).sum() + last.pow(3).sum(), leaves)]


def assert_equal(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("starts", STARTS.values(), ids=STARTS.keys())
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("name", CORES)
def test_outputs_and_gradients_equal_a_loop_over_rows_and_steps(name: str, layers: int, starts: Tensor) -> None:
    core, inputs, memory = make(name, layers)
    expected = results(lambda *arguments: reference(core, *arguments), core, inputs, memory, starts)
    assert_equal(results(core, core, inputs, memory, starts), expected)


@pytest.mark.parametrize("starts", STARTS.values(), ids=STARTS.keys())
@pytest.mark.parametrize("name", WITH_KERNEL)
def test_a_kernel_computes_the_layers_definition(name: str, starts: Tensor) -> None:
    core, inputs, memory = make(name, layers=1)
    ours, theirs = (
        results(
            lambda x, m, s, run=run: run(x, m[:, 0], s, *core._weights(0)),  # type: ignore[misc]
            core,
            inputs,
            memory,
            starts,
        )
        for run in (type(core).kernel, type(core).layer)
    )
    assert_equal(ours, theirs)


def test_a_subclass_with_a_different_layer_runs_without_the_kernel() -> None:
    class Leaky(LSTM):
        @staticmethod
        def layer(x, memory, starts, *weights):
            return LSTM.layer(0.5 * x, memory, starts, *weights)

    _, inputs, memory = make("lstm")
    leaky = Leaky(INPUT, HIDDEN, 1).double()
    leaky.load_state_dict(LSTM(INPUT, HIDDEN, 1).double().state_dict())
    plain = LSTM(INPUT, HIDDEN, 1).double()
    plain.load_state_dict(leaky.state_dict())
    starts = STARTS["dense"]
    expected, _ = plain(0.5 * inputs, memory[:, :1], starts)
    torch.testing.assert_close(leaky(inputs, memory[:, :1], starts)[0], expected)
    with torch.no_grad():
        torch.testing.assert_close(leaky(inputs, memory[:, :1], starts)[0], expected)


@pytest.mark.parametrize("at_once", [1, 2 * ROWS, 4 * ROWS])
def test_gradients_do_not_depend_on_the_size_of_a_chunk(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    core, inputs, memory = make("lstm")
    found = []
    for rows in (STEPS * ROWS, at_once):
        monkeypatch.setattr("engram.agent.recurrent.fused_lstm.ROWS_AT_ONCE", rows)
        found.append(results(core, core, inputs, memory, STARTS["dense"]))
    assert_equal(*found)


@pytest.mark.parametrize("name", CORES)
def test_acting_step_by_step_equals_learning_over_the_segment(name: str) -> None:
    core, inputs, memory = make(name)
    starts = STARTS["dense"]
    outputs, last = core(inputs, memory, starts)
    with torch.no_grad():
        for t in range(STEPS):
            output, memory = core(inputs[t : t + 1], memory, starts[t : t + 1])
            torch.testing.assert_close(output[0], outputs[t], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(memory, last, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CORES)
def test_the_new_memory_is_written_to_out(name: str, dtype: torch.dtype) -> None:
    core, inputs, memory = make(name)
    core, inputs, memory = core.to(dtype), inputs.to(dtype), memory.to(dtype)
    with torch.no_grad():
        expected = core(inputs, memory, STARTS["dense"])[1]
        for out in (torch.empty_like(memory), torch.empty_like(memory, dtype=torch.float64), memory):
            after = core(inputs, memory, STARTS["dense"], out)[1]
            assert after is out
            assert torch.equal(out.to(dtype), expected)


@pytest.mark.parametrize("name", CORES)
def test_nothing_before_an_episode_start_reaches_what_follows(name: str) -> None:
    core, inputs, memory = make(name)
    starts = starts_at((4, 2))
    inputs.requires_grad_()
    outputs, _ = core(inputs, memory, starts)
    (gradient,) = torch.autograd.grad(outputs[4:, 2].sum(), inputs)
    assert (gradient[:4, 2] == 0).all()
    assert (gradient[4, 2] != 0).any()
    changed = inputs.detach().clone()
    # A scan and attention multiply by zero, which keeps a NaN.
    changed[:4, 2] = 1e6 if name in ("mingru", "attention") else float("nan")
    after, _ = core(changed, memory, starts)
    assert torch.equal(after[4:, 2], outputs[4:, 2])
    assert torch.equal(after[:, :2], outputs[:, :2])


@pytest.mark.parametrize("starts", [STARTS["none"], STARTS["sparse"]], ids=["none", "sparse"])
def test_attention_sees_as_many_past_steps_as_its_window(starts: Tensor) -> None:
    torch.manual_seed(3)
    core = Attention(INPUT, 8, window=3).double()
    inputs = torch.randn(STEPS, ROWS, INPUT, dtype=torch.double, requires_grad=True)
    outputs, last = core(inputs, core.initial_memory(ROWS), starts)
    expected, memory = reference(core, inputs, core.initial_memory(ROWS), starts)
    torch.testing.assert_close((outputs, last), (expected, memory), rtol=1e-12, atol=1e-12)
    (gradient,) = torch.autograd.grad(outputs[-1, 0].sum(), inputs)
    assert [bool(step.any()) for step in gradient[:, 0]] == [False] * (STEPS - 4) + [True] * 4


@pytest.mark.parametrize("name", ["lru", "lstm", "gru"])
def test_acting_gives_the_bits_of_learning(name: str) -> None:
    torch.manual_seed(3)
    core, inputs = CORES[name](16, 32, 2), torch.randn(STEPS, ROWS, 16)
    memory = core.initial_memory(ROWS)
    outputs, _ = core(inputs, memory, STARTS["dense"])
    with torch.no_grad():
        for t in range(STEPS):
            output, memory = core(inputs[t : t + 1], memory, STARTS["dense"][t : t + 1])
            assert torch.equal(output[0], outputs[t])


def test_units_of_an_lru_live_for_up_to_the_horizon() -> None:
    core = LRU(INPUT, 64)
    core.spread_time_scales(500)
    lifetimes = 1 / core.decay_l0.detach().exp()
    assert 1 <= lifetimes.min() < 3
    assert 300 < lifetimes.max() <= 500
    assert (core.angle_l0 * lifetimes)[:32].max() <= torch.pi


def test_any_past_input_can_be_read_linearly_from_an_untrained_lru() -> None:
    torch.manual_seed(3)
    core, steps, delay = LRU(1, 128), 1200, 32
    core.spread_time_scales(128)
    inputs = torch.randint(0, 2, (steps, 1, 1)) * 2.0 - 1
    keep, angle = (-core.decay_l0.exp()).exp(), core.angle_l0
    drive = inputs * core.weight_ih_l0[:256].t() * (1 - keep * keep).sqrt().repeat(2)
    starts = torch.zeros(steps, 1, dtype=torch.bool)
    states = recurrence(drive, torch.zeros(1, 256), starts, keep * angle.cos(), keep * angle.sin())
    read, past = states[delay:, 0].detach().double(), inputs[:-delay, 0].double()
    fitted, held_out = slice(0, 900), slice(900, None)
    squares = read[fitted].t() @ read[fitted] + 1e-4 * torch.eye(256, dtype=torch.double)
    readout = torch.linalg.solve(squares, read[fitted].t() @ past[fitted])
    assert ((read[held_out] @ readout).sign() == past[held_out]).double().mean() > 0.95


def test_only_attention_has_a_window() -> None:
    assert make_core("attention", 4, 8, 1, window=5).memory_shape == (1, 5 * 8 + 1)
    with pytest.raises(UserError, match=r"only with py_agent\.core=attention"):
        make_core("lstm", 4, 8, 1, window=5)


@pytest.mark.parametrize(("name", "theirs"), [("lstm", nn.LSTM), ("gru", nn.GRU)])
def test_state_dicts_load_both_ways_and_give_torchs_numbers(name: str, theirs: type[nn.RNNBase]) -> None:
    core, inputs, memory = make(name)
    other = theirs(INPUT, HIDDEN, 2).double()
    other.load_state_dict(core.state_dict())
    core.load_state_dict(other.state_dict())
    h, c = memory.transpose(0, 1).tensor_split([HIDDEN], dim=-1)
    expected, _ = other(inputs, (h.contiguous(), c.contiguous()) if core.has_cell else h.contiguous())
    torch.testing.assert_close(core(inputs, memory, starts_at())[0], expected, rtol=1e-12, atol=1e-12)


def test_swapped_time_and_rows_are_refused() -> None:
    core, inputs, memory = make("lstm")
    with pytest.raises(ValueError, match="time first"):
        core(inputs, memory, starts_at().t())


def test_an_lstm_with_dropout_is_refused() -> None:
    with pytest.raises(ValueError, match="dropout"):
        LSTM.from_torch(nn.LSTM(4, 4, 2, dropout=0.1))
