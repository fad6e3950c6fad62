"""Recurrent cores as a plain loop over steps, and patterns of episode starts to compare them on."""

import torch
from torch import Tensor

from engram.agent.recurrent.core import Core

STEPS, ROWS = 9, 5


def reference(core: Core, inputs: Tensor, memory: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """What the core computes, one row and one step at a time, by the definition of its layer."""
    x, last = inputs, []
    for layer in range(core.num_layers):
        rows, after = [], []
        for row in range(inputs.shape[1]):
            m, outputs = memory[row : row + 1, layer], []
            for t in range(inputs.shape[0]):
                m = m.masked_fill(starts[t, row], 0)
                never = torch.zeros(1, 1, dtype=torch.bool)
                output, m = type(core).layer(x[t : t + 1, row : row + 1], m, never, *core._weights(layer))
                outputs.append(output)
            rows.append(torch.cat(outputs))
            after.append(m)
        x = torch.cat(rows, dim=1)
        last.append(torch.cat(after))
    return x, torch.stack(last, dim=1)


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
