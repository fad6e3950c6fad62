"""The recurrent cores against a plain loop over steps, in float64."""

import pytest
import torch
from support.plain_loop import ROWS, STARTS, STEPS, reference, starts_at
from torch import Tensor, nn

from engram.agent.recurrent.core import Core, State
from engram.agent.recurrent.cores import CORES
from engram.agent.recurrent.lstm import LSTM

INPUT, HIDDEN = 6, 7


def make(name: str, layers: int = 2) -> tuple[Core, Tensor, State]:
    torch.manual_seed(3)
    core = CORES[name](INPUT, HIDDEN, layers).double()
    inputs = torch.randn(STEPS, ROWS, INPUT, dtype=torch.double)
    memory = torch.randn(ROWS, *core.state_shape, dtype=torch.double)
    return core, inputs, core.unpack(memory)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("name", CORES)
def test_memory_may_be_given_as_it_is_stored(name: str, layers: int, dtype: torch.dtype) -> None:
    core, inputs, state = make(name, layers)
    core, inputs, state = core.to(dtype), inputs.to(dtype), State(*(part.to(dtype) for part in state))
    with torch.no_grad():
        for starts in STARTS.values():
            outputs, last = core(inputs, state, starts)
            outputs_too, after = core(inputs, core.pack(state), starts)
            assert torch.equal(outputs, outputs_too)
            assert torch.equal(core.pack(last), after)


@pytest.mark.parametrize("starts", STARTS.values(), ids=STARTS.keys())
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("name", CORES)
def test_outputs_and_all_gradients_equal_those_of_a_plain_loop(name: str, layers: int, starts: Tensor) -> None:
    core, inputs, state = make(name, layers)
    leaves = [inputs.requires_grad_(), state.h.requires_grad_(), *core.parameters()]
    if core.has_cell:
        leaves.append(state.c.requires_grad_())
    weight = torch.randn(STEPS, ROWS, HIDDEN, dtype=torch.double)
    results = []
    for run in (core, lambda *arguments: reference(core, *arguments)):
        outputs, last = run(inputs, state, starts)
        loss = (outputs * weight).sum() + last.h.square().sum() + last.c.pow(3).sum()
        results.append((outputs, *last, *torch.autograd.grad(loss, leaves)))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("at_once", [1, 2 * ROWS, 4 * ROWS])
def test_gradients_do_not_depend_on_how_many_steps_are_worked_on_at_once(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, inputs, state = make("lstm")
    leaves = [inputs.requires_grad_(), state.h.requires_grad_(), state.c.requires_grad_(), *core.parameters()]
    results = []
    for rows in (STEPS * ROWS, at_once):
        monkeypatch.setattr("engram.agent.recurrent.lstm.ROWS_AT_ONCE", rows)
        outputs, last = core(inputs, state, STARTS["dense"])
        results.append(torch.autograd.grad(outputs.square().sum() + last.c.sum(), leaves))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", CORES)
def test_acting_step_by_step_equals_learning_over_the_segment(name: str) -> None:
    core, inputs, state = make(name)
    starts = STARTS["dense"]
    outputs, last = core(inputs, state, starts)
    with torch.no_grad():
        for t in range(STEPS):
            output, state = core(inputs[t : t + 1], state, starts[t : t + 1])
            torch.testing.assert_close(output[0], outputs[t], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state.h, last.h, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CORES)
def test_nothing_before_an_episode_start_reaches_what_follows(name: str) -> None:
    core, inputs, state = make(name)
    starts = starts_at((4, 2))
    inputs.requires_grad_()
    outputs, _ = core(inputs, state, starts)
    (gradient,) = torch.autograd.grad(outputs[4:, 2].sum(), inputs)
    assert (gradient[:4, 2] == 0).all()
    assert (gradient[4, 2] != 0).any()
    changed = inputs.detach().clone()
    changed[:4, 2] = 1e6 if name == "mingru" else float("nan")  # a scan multiplies by zero, which keeps a NaN
    after, _ = core(changed, state, starts)
    assert torch.equal(after[4:, 2], outputs[4:, 2])
    assert torch.equal(after[:, :2], outputs[:, :2])


@pytest.mark.parametrize(("name", "theirs"), [("lstm", nn.LSTM), ("gru", nn.GRU)])
def test_state_dicts_load_both_ways_and_give_torchs_numbers(name: str, theirs: type[nn.RNNBase]) -> None:
    core, inputs, state = make(name)
    other = theirs(INPUT, HIDDEN, 2).double()
    other.load_state_dict(core.state_dict())
    core.load_state_dict(other.state_dict())
    expected, _ = other(inputs, tuple(state) if core.has_cell else state.h)
    torch.testing.assert_close(core(inputs, state)[0], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", CORES)
def test_compiles_without_a_graph_break_and_gives_the_same_numbers(name: str) -> None:
    core, inputs, state = make(name)
    compiled = torch.compile(core, fullgraph=True)
    starts = STARTS["dense"]
    results = []
    for run in (core, compiled):
        outputs, last = run(inputs, state, starts)
        results.append((outputs, last.h, *torch.autograd.grad(outputs.sum() + last.h.sum(), list(core.parameters()))))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_swapped_time_and_rows_are_refused() -> None:
    core, inputs, state = make("lstm")
    with pytest.raises(ValueError, match="time first"):
        core(inputs, state, starts_at().t())


def test_an_lstm_with_dropout_is_refused() -> None:
    with pytest.raises(ValueError, match="dropout"):
        LSTM.from_torch(nn.LSTM(4, 4, 2, dropout=0.1))
