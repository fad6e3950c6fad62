"""The LSTM layer, faster: native kernels where they can run, else PyTorch with a hand-derived gradient.

Autograd through a loop over steps takes twice as long. Each direction is one operator, so `torch.compile` has no graph
break here.
"""

# T steps, B rows, I input size, H hidden size, G = 4H gates in the order of torch.nn.LSTM: i, f, g, o

import torch
from torch import Tensor

from engram.agent.recurrent.core import before_each_step, clear
from engram.native import lstm as native
from engram.native.operator import Operator

ROWS_AT_ONCE = 2048  # in PyTorch, so that the gates of a chunk stay in cache


def fused_lstm_layer(x_TBI: Tensor, memory_BS: Tensor, starts_TB: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
    """The same as `lstm_layer`."""
    h, c = memory_BS.chunk(2, dim=-1)
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        outputs, cells, _ = lstm_operator(x_TBI, h, c, starts_TB, *weights)
    else:
        outputs, cells, _ = _forward(x_TBI, h, c, starts_TB, *weights, keep_gates=False)
    return outputs, torch.cat([outputs[-1], cells[-1]], dim=-1)


def _forward(
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    starts: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor,
    b_hh: Tensor,
    *,
    keep_gates: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    if native.usable(x):
        return native.forward(x, h0, c0, starts, w_ih, w_hh, b_ih, b_hh, keep_gates)
    steps, rows, _ = x.shape
    hidden = h0.shape[1]
    gates, bias = x.new_empty(steps, rows, 4 * hidden), b_ih + b_hh
    outputs, cells = x.new_empty(steps, rows, hidden), x.new_empty(steps, rows, hidden)
    w_hh_t = w_hh.t()
    h, c = h0, c0
    for chunk in _chunks(steps, rows, x.device.type):
        torch.addmm(bias, x[chunk].flatten(0, 1), w_ih.t(), out=gates[chunk].flatten(0, 1))
        for t in range(chunk.start, chunk.stop):
            h, c = clear(starts[t], h, c)
            i_f, g, o = gates[t].addmm_(h, w_hh_t).split([2 * hidden, hidden, hidden], dim=1)
            i, f = i_f.sigmoid_().chunk(2, dim=1)
            c = torch.mul(f, c, out=cells[t]).addcmul_(i, tanh_into(g, g))
            h = tanh_into(c, outputs[t]).mul_(o.sigmoid_())
    return outputs, cells, gates


@Operator
def lstm_operator(
    x: Tensor, h0: Tensor, c0: Tensor, starts: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs [T, B, H], cells [T, B, H] and activated gates [T, B, 4H] of one layer."""
    return _forward(x, h0, c0, starts, w_ih, w_hh, b_ih, b_hh, keep_gates=True)


@lstm_operator.register_fake
def _(x, h0, c0, starts, w_ih, w_hh, b_ih, b_hh):
    steps, rows, hidden = x.shape[0], x.shape[1], h0.shape[1]
    sizes = (hidden, hidden, 4 * hidden)
    return tuple(x.new_empty(steps, rows, size) for size in sizes)


@Operator
def lstm_backward_operator(
    d_outputs: Tensor,
    d_cells: Tensor | None,
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    starts: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    outputs: Tensor,
    cells: Tensor,
    gates: Tensor,
) -> list[Tensor]:
    """Gradients of x, h0, c0, w_ih, w_hh and the bias."""
    if native.usable(x):
        return native.backward(d_outputs, d_cells, x, h0, c0, starts, w_ih, w_hh, outputs, cells, gates)
    steps, rows, hidden = outputs.shape
    d_x, d_w_ih, d_w_hh = x.new_empty(x.shape), torch.zeros_like(w_ih), torch.zeros_like(w_hh)
    d_h, d_c, d_b = torch.zeros_like(h0), torch.zeros_like(c0), w_ih.new_zeros(4 * hidden)
    chunks = _chunks(steps, rows, x.device.type)
    scratch = torch.empty_like(gates[chunks[0]]) if chunks else gates
    for chunk in reversed(chunks):
        h_first, c_first = (outputs[chunk.start - 1], cells[chunk.start - 1]) if chunk.start else (h0, c0)
        h_before = before_each_step(h_first, outputs[chunk], starts[chunk])
        c_before = before_each_step(c_first, cells[chunk], starts[chunk])
        i, f, g, o = gates[chunk].unflatten(-1, (4, hidden)).unbind(2)
        tanh_c = tanh_into(cells[chunk], torch.empty_like(c_before))
        cell_factor = torch.addcmul(o, outputs[chunk], tanh_c, value=-1)  # o (1 - tanh_c²)
        # The gradient of a gate before its activation is d_c or d_h times a factor, computed here for the whole chunk.
        d_gates = scratch[: chunk.stop - chunk.start]
        split = d_gates.unflatten(-1, (4, hidden))
        d_i, d_f, d_g, d_o = split.unbind(2)
        torch.addcmul(i, i, i, value=-1, out=d_i).mul_(g)
        torch.addcmul(f, f, f, value=-1, out=d_f).mul_(c_before)
        torch.addcmul(i, i * g, g, value=-1, out=d_g)
        torch.addcmul(o, o, o, value=-1, out=d_o).mul_(tanh_c)
        for t in range(chunk.stop - 1, chunk.start - 1, -1):
            k = t - chunk.start
            d_h = d_h.add_(d_outputs[t])
            d_c = d_c.addcmul_(d_h, cell_factor[k])
            if d_cells is not None:
                d_c = d_c.add_(d_cells[t])
            split[k, :, :3].mul_(d_c.unsqueeze(1))
            d_o[k].mul_(d_h)
            d_h, d_c = clear(starts[t], torch.mm(d_gates[k], w_hh), d_c.mul_(f[k]))
        flat = d_gates.flatten(0, 1)
        torch.mm(flat, w_ih, out=d_x[chunk].flatten(0, 1))
        d_w_ih.addmm_(flat.t(), x[chunk].flatten(0, 1))
        d_w_hh.addmm_(flat.t(), h_before.flatten(0, 1))
        d_b += flat.sum(0)
    return [d_x, d_h, d_c, d_w_ih, d_w_hh, d_b]


def tanh_into(x: Tensor, out: Tensor) -> Tensor:
    """tanh(x) in `out`. On CPUs by the sigmoid, which PyTorch computes faster."""
    if x.device.type != "cpu":
        return torch.tanh(x, out=out)
    return torch.add(x, x, out=out).sigmoid_().mul_(2).sub_(1)


def _chunks(steps: int, rows: int, device: str) -> list[slice]:
    """Slices of steps: on CPUs short enough that their intermediate results stay in cache."""
    size = max(1, ROWS_AT_ONCE // max(1, rows)) if device == "cpu" else max(1, steps)
    return [slice(start, min(start + size, steps)) for start in range(0, steps, size)]


@lstm_backward_operator.register_fake
def _(d_outputs, d_cells, x, h0, c0, starts, w_ih, w_hh, outputs, cells, gates):
    shapes = [x.shape, h0.shape, c0.shape, w_ih.shape, w_hh.shape, w_ih.shape[:1]]
    return [x.new_empty(shape) for shape in shapes]


def _save_for_backward(ctx, inputs, output) -> None:
    x, h0, c0, starts, w_ih, w_hh, _, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, h0, c0, starts, w_ih, w_hh, *output)


def _backward(ctx, d_outputs, d_cells, _):
    saved = ctx.saved_tensors
    if d_outputs is None:
        d_outputs = torch.zeros_like(saved[6])
    d_x, d_h, d_c, d_w_ih, d_w_hh, d_b = lstm_backward_operator(d_outputs, d_cells, *saved)
    return d_x, d_h, d_c, None, d_w_ih, d_w_hh, d_b, d_b


lstm_operator.register_autograd(_backward, _save_for_backward)
