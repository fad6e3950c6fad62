"""The recurrent cores against a plain loop over steps, in float64."""

import pytest
import torch
from torch import Tensor, nn

from engram.agent.core import Core, State
from engram.agent.cores import CORES
from engram.agent.lstm import LSTM

STEPS, ROWS, INPUT, HIDDEN = 9, 5, 6, 7


def cell(core: Core, layer: int, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """One step of one layer, written out."""
    weights = core._weights(layer)
    if isinstance(core, LSTM):
        w_ih, w_hh, b_ih, b_hh = weights
        i, f, g, o = (x @ w_ih.T + b_ih + h @ w_hh.T + b_hh).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
    if len(weights) == 4:
        w_ih, w_hh, b_ih, b_hh = weights
        (xr, xz, xn), (hr, hz, hn) = (x @ w_ih.T + b_ih).chunk(3, -1), (h @ w_hh.T + b_hh).chunk(3, -1)
        r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
        return (1 - z) * (xn + r * hn).tanh() + z * h, c
    w, b = weights
    z, n = (x @ w.T + b).chunk(2, -1)
    return (1 - z.sigmoid()) * h + z.sigmoid() * n.tanh(), c


def reference(core: Core, inputs: Tensor, state: State, starts: Tensor) -> tuple[Tensor, State]:
    x, last_h, last_c = inputs, [], []
    for layer in range(core.num_layers):
        h, c, outputs = state.h[layer], state.c[layer], []
        for t in range(inputs.shape[0]):
            keep = (~starts[t]).to(x.dtype).unsqueeze(-1)
            h, c = cell(core, layer, x[t], h * keep, c * keep)
            outputs.append(h)
        x = torch.stack(outputs)
        last_h.append(h)
        last_c.append(c)
    return x, State(torch.stack(last_h), torch.stack(last_c))


def make(name: str, layers: int = 2) -> tuple[Core, Tensor, State]:
    torch.manual_seed(3)
    core = CORES[name](INPUT, HIDDEN, layers).double()
    inputs = torch.randn(STEPS, ROWS, INPUT, dtype=torch.double)
    memory = torch.randn(ROWS, *core.state_shape, dtype=torch.double)
    return core, inputs, core.unpack(memory)


def starts_at(*places: tuple[int | slice, int | slice]) -> Tensor:
    starts = torch.zeros(STEPS, ROWS, dtype=torch.bool)
    for place in places:
        starts[place] = True
    return starts


EVERYWHERE = slice(None)
STARTS = {
    "none": starts_at(),
    "at the first step": starts_at((0, 2)),
    "at the last step": starts_at((STEPS - 1, 1)),
    "in adjacent steps": starts_at((3, 1), (4, 1), (5, 1)),
    "in all rows at once": starts_at((4, EVERYWHERE)),
    "at every step of a row": starts_at((EVERYWHERE, 3)),
    "everywhere": starts_at((EVERYWHERE, EVERYWHERE)),
    "sparse": torch.rand(STEPS, ROWS, generator=torch.Generator().manual_seed(1)) < 0.05,
    "dense": torch.rand(STEPS, ROWS, generator=torch.Generator().manual_seed(2)) < 0.4,
}


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
