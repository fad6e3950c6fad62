"""The minGRU core: its gates do not depend on memory, so a parallel scan computes all steps of a segment at once."""

# T steps, B rows, I input size, H hidden size

import torch
from torch import Tensor
from torch.nn import functional as F

from engram.agent.recurrent.core import Core


def mingru_layer(x_TBI: Tensor, h_BH: Tensor, starts_TB: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """h = (1 - z) * h + z * n with z = sigmoid(x Wz), n = tanh(x Wn): outputs [T, B, H] and the last h."""
    z, n = F.linear(x_TBI, weight, bias).chunk(2, dim=-1)
    z = z.sigmoid()
    keep = (1 - z).masked_fill(starts_TB.unsqueeze(-1), 0)
    first = h_BH.masked_fill(starts_TB[0].unsqueeze(-1), 0)
    outputs = linear_scan(keep, z * n.tanh(), first)
    return outputs, outputs[-1]


class MinGRU(Core):
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
