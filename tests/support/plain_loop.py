"""The recurrent cores written out as a plain loop over steps, and places where episodes start, to compare with."""

import torch
from torch import Tensor

from engram.agent.recurrent.core import Core, State
from engram.agent.recurrent.lstm import LSTM

STEPS, ROWS = 9, 5


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
