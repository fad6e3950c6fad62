"""The LSTM core, with a backward pass of its own: one operator each way, which `torch.compile` sees whole."""

# T steps, B rows, I input size, H hidden size; gates in the order of torch.nn.LSTM: i, f, g, o

import torch
from torch import Tensor, nn

from engram.agent.recurrent.core import Core, forget, previous
from engram.agent.recurrent.operator import Operator
from engram.agent.recurrent.tanh import tanh_into
from engram.native import lstm as native

ROWS_AT_ONCE = 2048  # in PyTorch


class LSTM(Core):
    """`torch.nn.LSTM`, time first, that forgets exactly at episode starts. State dicts load both ways."""

    gates = 4
    has_cell = True

    @classmethod
    def from_torch(cls, module: nn.LSTM) -> "LSTM":
        """The same layer around the same parameters."""
        if module.bidirectional or module.proj_size or module.batch_first or module.dropout or not module.bias:
            raise ValueError(
                "an nn.LSTM inside a policy must be time first, with biases, in one direction, without projections and "
                "without dropout (dropout would make replayed log-probabilities differ from those of acting)"
            )
        core = cls(module.input_size, module.hidden_size, module.num_layers)
        for name, parameter in module.named_parameters():
            setattr(core, name, parameter)
        return core

    def _run_stored(
        self, x_TBI: Tensor, memory_BLS: Tensor, starts_TB: Tensor, room: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or not native.usable(x_TBI):
            return super()._run_stored(x_TBI, memory_BLS, starts_TB, room)
        return native.advance(x_TBI, memory_BLS, starts_TB, [self._weights(i) for i in range(self.num_layers)], room)

    def _layer(self, layer: int, x_TBI: Tensor, h_BH: Tensor, c_BC: Tensor, starts_TB: Tensor) -> tuple[Tensor, ...]:
        arguments = (x_TBI, h_BH, c_BC, starts_TB, *self._weights(layer))
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            outputs, cells, _ = lstm_layer(*arguments)
        else:
            outputs, cells, _ = _run(*arguments, keep_gates=False)
        return outputs, outputs[-1], cells[-1]


def _run(
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
    for part in _parts(steps, rows, x.device.type):
        torch.addmm(bias, x[part].flatten(0, 1), w_ih.t(), out=gates[part].flatten(0, 1))
        for t in range(part.start, part.stop):
            h, c = forget(starts[t], h, c)
            i_f, g, o = gates[t].addmm_(h, w_hh_t).split([2 * hidden, hidden, hidden], dim=1)
            i, f = i_f.sigmoid_().chunk(2, dim=1)
            c = torch.mul(f, c, out=cells[t]).addcmul_(i, tanh_into(g, g))
            h = tanh_into(c, outputs[t]).mul_(o.sigmoid_())
    return outputs, cells, gates


@Operator
def lstm_layer(
    x: Tensor, h0: Tensor, c0: Tensor, starts: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs [T, B, H], cells [T, B, H] and activated gates [T, B, 4H] of one layer."""
    return _run(x, h0, c0, starts, w_ih, w_hh, b_ih, b_hh, keep_gates=True)


@lstm_layer.register_fake
def _(x, h0, c0, starts, w_ih, w_hh, b_ih, b_hh):
    steps, rows, hidden = x.shape[0], x.shape[1], h0.shape[1]
    sizes = (hidden, hidden, 4 * hidden)
    return tuple(x.new_empty(steps, rows, size) for size in sizes)


@Operator
def lstm_layer_backward(
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
    parts = _parts(steps, rows, x.device.type)
    room = torch.empty_like(gates[parts[0]]) if parts else gates
    for part in reversed(parts):
        h_first, c_first = (outputs[part.start - 1], cells[part.start - 1]) if part.start else (h0, c0)
        h_before = previous(h_first, outputs[part], starts[part])
        c_before = previous(c_first, cells[part], starts[part])
        i, f, g, o = gates[part].unflatten(-1, (4, hidden)).unbind(2)
        tanh_c = tanh_into(cells[part], torch.empty_like(c_before))
        cell_factor = torch.addcmul(o, outputs[part], tanh_c, value=-1)  # o (1 - tanh_c²)
        # d(gate before activation) is d_cell or d_output times a factor that is known for all these steps at once
        d_gates = room[: part.stop - part.start]
        split = d_gates.unflatten(-1, (4, hidden))
        d_i, d_f, d_g, d_o = split.unbind(2)
        torch.addcmul(i, i, i, value=-1, out=d_i).mul_(g)
        torch.addcmul(f, f, f, value=-1, out=d_f).mul_(c_before)
        torch.addcmul(i, i * g, g, value=-1, out=d_g)
        torch.addcmul(o, o, o, value=-1, out=d_o).mul_(tanh_c)
        for t in range(part.stop - 1, part.start - 1, -1):
            here = t - part.start
            d_h = d_h.add_(d_outputs[t])
            d_c = d_c.addcmul_(d_h, cell_factor[here])
            if d_cells is not None:
                d_c = d_c.add_(d_cells[t])
            split[here, :, :3].mul_(d_c.unsqueeze(1))
            d_o[here].mul_(d_h)
            d_h, d_c = forget(starts[t], torch.mm(d_gates[here], w_hh), d_c.mul_(f[here]))
        flat = d_gates.flatten(0, 1)
        torch.mm(flat, w_ih, out=d_x[part].flatten(0, 1))
        d_w_ih.addmm_(flat.t(), x[part].flatten(0, 1))
        d_w_hh.addmm_(flat.t(), h_before.flatten(0, 1))
        d_b += flat.sum(0)
    return [d_x, d_h, d_c, d_w_ih, d_w_hh, d_b]


def _parts(steps: int, rows: int, device: str) -> list[slice]:
    """The steps in parts: on CPUs so few at once that what is computed of them stays in cache."""
    at_once = max(1, ROWS_AT_ONCE // max(1, rows)) if device == "cpu" else max(1, steps)
    return [slice(start, min(start + at_once, steps)) for start in range(0, steps, at_once)]


@lstm_layer_backward.register_fake
def _(d_outputs, d_cells, x, h0, c0, starts, w_ih, w_hh, outputs, cells, gates):
    shapes = [x.shape, h0.shape, c0.shape, w_ih.shape, w_hh.shape, w_ih.shape[:1]]
    return [x.new_empty(shape) for shape in shapes]


def _remember(ctx, inputs, output) -> None:
    x, h0, c0, starts, w_ih, w_hh, _, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, h0, c0, starts, w_ih, w_hh, *output)


def _backward(ctx, d_outputs, d_cells, _):
    saved = ctx.saved_tensors
    if d_outputs is None:
        d_outputs = torch.zeros_like(saved[6])
    d_x, d_h, d_c, d_w_ih, d_w_hh, d_b = lstm_layer_backward(d_outputs, d_cells, *saved)
    return d_x, d_h, d_c, None, d_w_ih, d_w_hh, d_b, d_b


lstm_layer.register_autograd(_backward, _remember)
