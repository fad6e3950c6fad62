"""The GRU core, and the minGRU core."""

# T steps, B rows, I input size, H hidden size; gates in the order of torch.nn.GRU: r, z, n

import torch
from torch import Tensor
from torch.nn import functional as F

from engram.agent.recurrent.core import Core
from engram.agent.recurrent.fused_gru import fused_gru_layer


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


class GRU(Core):
    """`torch.nn.GRU`, time first, with episode boundaries. State dicts load both ways."""

    gates = 3
    layer = staticmethod(gru_layer)
    kernel = staticmethod(fused_gru_layer)


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
