"""The minGRU core: gates that do not look at the memory, so that all steps of a segment are computed at once."""

# T steps, B rows, I input size, H hidden size

import torch
from torch import Tensor

from engram.agent.recurrent.core import Core


class MinGRU(Core):
    """h = (1 - z) * h + z * n, z = sigmoid(x Wz), n = tanh(x Wn): a linear recurrence, solved by a parallel scan."""

    gates = 2  # z, n
    recurrent_weights = False

    def _layer(self, layer: int, x_TBI: Tensor, h_BH: Tensor, c_BC: Tensor, starts_TB: Tensor) -> tuple[Tensor, ...]:
        weight, bias = self._weights(layer)
        z, n = torch.nn.functional.linear(x_TBI, weight, bias).chunk(2, dim=-1)
        z = z.sigmoid()
        keep = (1 - z).masked_fill(starts_TB.unsqueeze(-1), 0)
        first = h_BH.masked_fill(starts_TB[0].unsqueeze(-1), 0)
        outputs = scan(keep, z * n.tanh(), first)
        return outputs, outputs[-1], c_BC


def scan(keep_TBH: Tensor, add_TBH: Tensor, first_BH: Tensor) -> Tensor:
    """h[t] = keep[t] * h[t-1] + add[t] for all t, by doubling: log2(T) passes over the whole segment."""
    keep, add = keep_TBH, torch.cat([torch.addcmul(add_TBH[:1], keep_TBH[:1], first_BH), add_TBH[1:]])
    span = 1
    while span < keep.shape[0]:
        add = torch.cat([add[:span], torch.addcmul(add[span:], keep[span:], add[:-span])])
        keep = torch.cat([keep[:span], keep[span:] * keep[:-span]])
        span *= 2
    return add
