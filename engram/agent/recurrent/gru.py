"""The GRU core, and the minGRU core."""

# T steps, B rows, I input size, H hidden size; gates in the order of torch.nn.GRU: r, z, n

import torch
from torch import Tensor
from torch.nn import functional as F

from engram.agent.recurrent.core import Core, before_each_step, clear
from engram.native.operator import Operator


def gru_layer(
    x_TBI: Tensor, h_BH: Tensor, starts_TB: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
) -> tuple[Tensor, Tensor]:
    """One GRU layer that forgets at episode starts: outputs [T, B, H] and the last h."""
    from_x = F.linear(x_TBI, w_ih, b_ih)
    h, outputs = h_BH, []
    for from_x_t, starts_B in zip(from_x, starts_TB, strict=True):
        h = h.masked_fill(starts_B.unsqueeze(-1), 0)
        x_r, x_z, x_n = from_x_t.chunk(3, dim=-1)
        h_r, h_z, h_n = F.linear(h, w_hh, b_hh).chunk(3, dim=-1)
        r, z = (x_r + h_r).sigmoid(), (x_z + h_z).sigmoid()
        n = (x_n + r * h_n).tanh()
        h = (1 - z) * n + z * h
        outputs.append(h)
    return torch.stack(outputs), h


def fused_gru_layer(x_TBI: Tensor, h_BH: Tensor, starts_TB: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
    """`gru_layer`, faster: by the operator below."""
    operator = gru_operator if torch.is_grad_enabled() or torch.compiler.is_compiling() else _forward
    outputs, _, _ = operator(x_TBI, h_BH, starts_TB, *weights)
    return outputs, outputs[-1]


class GRU(Core):
    """`torch.nn.GRU`, time first, with episode boundaries. State dicts load both ways."""

    gates = 3
    layer = staticmethod(gru_layer)
    kernel = staticmethod(fused_gru_layer)


# The GRU layer, faster: in place, with a hand-derived gradient, one operator each way.


def _forward(
    x: Tensor, h0: Tensor, starts: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    steps, rows, _ = x.shape
    hidden = h0.shape[1]
    gates = torch.addmm(b_ih, x.reshape(steps * rows, -1), w_ih.t()).view(steps, rows, 3 * hidden)
    outputs, candidates = x.new_empty(steps, rows, hidden), x.new_empty(steps, rows, hidden)
    w_hh_t = w_hh.t()
    h = h0
    for t in range(steps):
        (h,) = clear(starts[t], h)
        from_h = torch.addmm(b_hh, h, w_hh_t)
        r_z = gates[t, :, : 2 * hidden].add_(from_h[:, : 2 * hidden]).sigmoid_()
        candidates[t] = from_h[:, 2 * hidden :]
        n = gates[t, :, 2 * hidden :].addcmul_(r_z[:, :hidden], candidates[t]).tanh_()
        h = torch.lerp(n, h, r_z[:, hidden:], out=outputs[t])
    return outputs, gates, candidates


@Operator
def gru_operator(
    x: Tensor, h0: Tensor, starts: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs [T, B, H], activated gates [T, B, 3H] and h's contribution to the candidate [T, B, H]."""
    return _forward(x, h0, starts, w_ih, w_hh, b_ih, b_hh)


@gru_operator.register_fake
def _(x, h0, starts, w_ih, w_hh, b_ih, b_hh):
    steps, rows, hidden = x.shape[0], x.shape[1], h0.shape[1]
    return tuple(x.new_empty(steps, rows, size) for size in (hidden, 3 * hidden, hidden))


@Operator
def gru_backward_operator(
    d_outputs: Tensor,
    x: Tensor,
    h0: Tensor,
    starts: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    outputs: Tensor,
    gates: Tensor,
    candidates: Tensor,
) -> list[Tensor]:
    """Gradients of x, h0, w_ih, w_hh, b_ih and b_hh."""
    steps, rows, hidden = outputs.shape
    r, z, n = gates.view(steps, rows, 3, hidden).unbind(2)
    h_before = before_each_step(h0, outputs, starts)
    n_factor = (1 - z) * (1 - n * n)
    factors = torch.stack([n_factor * candidates * r * (1 - r), (h_before - n) * z * (1 - z), n_factor], dim=2)
    d_from_x = torch.empty_like(gates)
    d_from_h = torch.empty_like(gates)
    x_split, h_split = (d.view(steps, rows, 3, hidden) for d in (d_from_x, d_from_h))
    d_h = torch.zeros_like(h0)
    for t in range(steps - 1, -1, -1):
        d_h = d_h.add_(d_outputs[t])
        torch.mul(factors[t], d_h.unsqueeze(1), out=x_split[t])
        h_split[t, :, :2] = x_split[t, :, :2]
        torch.mul(x_split[t, :, 2], r[t], out=h_split[t, :, 2])
        (d_h,) = clear(starts[t], torch.addmm(d_h.mul_(z[t]), d_from_h[t], w_hh))
    flat_x, flat_h = d_from_x.view(steps * rows, -1), d_from_h.view(steps * rows, -1)
    d_w_ih = torch.mm(flat_x.t(), x.reshape(steps * rows, -1))
    d_w_hh = torch.mm(flat_h.t(), h_before.view(steps * rows, -1))
    return [torch.mm(flat_x, w_ih).view_as(x), d_h, d_w_ih, d_w_hh, flat_x.sum(0), flat_h.sum(0)]


@gru_backward_operator.register_fake
def _(d_outputs, x, h0, starts, w_ih, w_hh, outputs, gates, candidates):
    shapes = [x.shape, h0.shape, w_ih.shape, w_hh.shape, w_ih.shape[:1], w_ih.shape[:1]]
    return [x.new_empty(shape) for shape in shapes]


def _save_for_backward(ctx, inputs, output) -> None:
    x, h0, starts, w_ih, w_hh, _, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, h0, starts, w_ih, w_hh, *output)


def _backward(ctx, d_outputs, *_):
    d_x, d_h, d_w_ih, d_w_hh, d_b_ih, d_b_hh = gru_backward_operator(d_outputs, *ctx.saved_tensors)
    return d_x, d_h, None, d_w_ih, d_w_hh, d_b_ih, d_b_hh


gru_operator.register_autograd(_backward, _save_for_backward)


# minGRU


def mingru_layer(x_TBI: Tensor, h_BH: Tensor, starts_TB: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """h = (1 - z) * h + z * n with z = sigmoid(x Wz), n = tanh(x Wn): outputs [T, B, H] and the last h."""
    z, n = F.linear(x_TBI, weight, bias).chunk(2, dim=-1)
    z = z.sigmoid()
    keep = (1 - z).masked_fill(starts_TB.unsqueeze(-1), 0)
    first = h_BH.masked_fill(starts_TB[0].unsqueeze(-1), 0)
    outputs = linear_scan(keep, z * n.tanh(), first)
    return outputs, outputs[-1]


class MinGRU(Core):
    """A GRU whose gates do not depend on memory: a parallel scan computes all steps of a segment at once."""

    gates = 2  # z, n
    has_recurrent_weights = False
    layer = staticmethod(mingru_layer)


def linear_scan(keep_TBH: Tensor, add_TBH: Tensor, first_BH: Tensor) -> Tensor:
    """h[t] = keep[t] * h[t-1] + add[t] for all t, in log2(T) passes over the segment."""
    keep, add = keep_TBH, torch.cat([torch.addcmul(add_TBH[:1], keep_TBH[:1], first_BH), add_TBH[1:]])
    span = 1
    while span < keep.shape[0]:
        add = torch.cat([add[:span], torch.addcmul(add[span:], keep[span:], add[:-span])])
        keep = torch.cat([keep[:span], keep[span:] * keep[:-span]])
        span *= 2
    return add
