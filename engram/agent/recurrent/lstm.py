"""The LSTM core."""

# T steps, B rows, I input size, H hidden size, G = 4H gates in the order of torch.nn.LSTM: i, f, g, o

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engram.agent.recurrent.core import Core
from engram.agent.recurrent.fused_lstm import fused_lstm_layer
from engram.native import lstm as native
from engram.native.operator import is_traced


def lstm_layer(
    x_TBI: Tensor, memory_BS: Tensor, starts_TB: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
) -> tuple[Tensor, Tensor]:
    """One LSTM layer that forgets at episode starts: outputs [T, B, H] and the last memory, h beside c."""
    h, c = memory_BS.chunk(2, dim=-1)
    from_x_TBG = F.linear(x_TBI, w_ih, b_ih + b_hh)
    outputs = []
    for from_x_BG, starts_B in zip(from_x_TBG, starts_TB, strict=True):
        start = starts_B.unsqueeze(-1)
        h, c = h.masked_fill(start, 0), c.masked_fill(start, 0)
        i, f, g, o = (from_x_BG + h @ w_hh.t()).chunk(4, dim=-1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(h)
    return torch.stack(outputs), torch.cat([h, c], dim=-1)


class LSTM(Core):
    """`torch.nn.LSTM`, time first, with episode boundaries. State dicts load both ways."""

    gates = 4
    has_cell = True
    layer = staticmethod(lstm_layer)
    kernel = staticmethod(fused_lstm_layer)

    @classmethod
    def from_torch(cls, module: nn.LSTM) -> "LSTM":
        """The same layers around the same parameters."""
        if module.bidirectional or module.proj_size or module.batch_first or module.dropout or not module.bias:
            raise ValueError(
                "an nn.LSTM inside a policy must be time first, with biases, unidirectional, without projections and "
                "without dropout (with dropout, replayed log-probabilities differ from those of acting)"
            )
        core = cls(module.input_size, module.hidden_size, module.num_layers)
        for name, parameter in module.named_parameters():
            setattr(core, name, parameter)
        return core

    def _run(
        self, x_TBI: Tensor, memory_BLS: Tensor, starts_TB: Tensor, out: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        acting = not torch.is_grad_enabled() and not is_traced()
        if acting and self.kernel is not None and native.usable(x_TBI):  # all layers in one call of C
            weights = [self._weights(layer) for layer in range(self.num_layers)]
            return native.advance(x_TBI, memory_BLS, starts_TB, weights, out)
        return super()._run(x_TBI, memory_BLS, starts_TB, out)
