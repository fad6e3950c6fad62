"""The recurrent core: a function (inputs, memory, starts) -> (outputs, memory) with exact episode boundaries.

Every core has the call of `torch.nn.LSTM`, `core(inputs, (h, c))`, plus `starts`: true where an observation is the
first of an episode. There the memory is zero before the step, for that row alone, and no gradient crosses.
"""

# T steps, B rows, I input size, H hidden size, L layers, C cell size (H for the LSTM, 0 for cores with one state)

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from engram.settings import UserError

WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")  # of each layer
FORGET = 1  # the place of the forget gate among an LSTM's


class State(NamedTuple):
    """The memory of some rows, as cores use it."""

    h: Tensor  # [L, B, H]
    c: Tensor  # [L, B, C]


class Core(nn.Module):
    """What all cores share. Parameters are named and shaped like those of `torch.nn.LSTM` and `torch.nn.GRU`."""

    gates: int  # blocks of H rows in a weight
    has_cell = False
    recurrent_weights = True  # whether there is a weight_hh
    burn_in = 0  # first steps of a segment that only bring memory up to date: no gradient goes to them or past them
    weight_ih_l0: nn.Parameter

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self._pending_starts: Tensor | None = None
        for layer in range(num_layers):
            size = input_size if layer == 0 else hidden_size
            self._parameter(f"weight_ih_l{layer}", self.gates * hidden_size, size)
            if self.recurrent_weights:
                self._parameter(f"weight_hh_l{layer}", self.gates * hidden_size, hidden_size)
            self._parameter(f"bias_ih_l{layer}", self.gates * hidden_size)
            if self.recurrent_weights:
                self._parameter(f"bias_hh_l{layer}", self.gates * hidden_size)
        self.reset_parameters()

    @property
    def cell_size(self) -> int:
        return self.hidden_size if self.has_cell else 0

    @property
    def state_shape(self) -> tuple[int, int]:
        """Layers, and floats per layer, of one row's memory: h and c side by side."""
        return self.num_layers, self.hidden_size + self.cell_size

    def reset_parameters(self) -> None:
        """Orthogonal weights, gate by gate, and biases 0, but 1 for an LSTM's forget gates: it begins by remembering.

        Biases of 1 for all gates would saturate them: after a few steps nothing that was seen makes a difference.
        """
        for name, parameter in self.named_parameters():
            if name.startswith("weight"):
                for gate in parameter.detach().chunk(self.gates):
                    nn.init.orthogonal_(gate)
            else:
                nn.init.zeros_(parameter)
            if self.has_cell and name.startswith("bias_ih"):
                nn.init.ones_(parameter.detach().chunk(self.gates)[FORGET])

    def unpack(self, memory_BLS: Tensor) -> State:
        """Memory as it is stored, rows first, to what a core takes."""
        return State(*memory_BLS.transpose(0, 1).split([self.hidden_size, self.cell_size], dim=-1))

    def pack(self, state: State) -> Tensor:
        return torch.cat([part.transpose(0, 1) for part in state], dim=-1)

    def expect(self, starts_TB: Tensor | None) -> None:
        """The starts for the next call, for callers that use the call of `torch.nn.LSTM`: it has no place for them."""
        self._pending_starts = starts_TB

    def forward(
        self,
        inputs_TBI: Tensor,
        state: State | tuple[Tensor, Tensor] | Tensor | None = None,
        starts_TB: Tensor | None = None,
        room: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        """Outputs [T, B, H] and the memory after the last step: a `State`, or one tensor if `state` is one.

        `state`: h and c [L, B, ...], or both as they are stored, [B, L, S]. In that case the memory may be written to
        `room`, which may be `state` itself, and is `room` then; where that saves nothing it is a new tensor.
        """
        if inputs_TBI.dim() != 3 or inputs_TBI.shape[2] != self.input_size:
            raise UserError(
                f"{type(self).__name__}: inputs are {list(inputs_TBI.shape)}, and it was made for [T, B, "
                f"{self.input_size}]: make it with the input_size that it is given"
            )
        steps, rows, _ = inputs_TBI.shape
        if starts_TB is None:
            starts_TB, self._pending_starts = self._pending_starts, None
        if starts_TB is None:
            starts_TB = torch.zeros(steps, rows, dtype=torch.bool, device=inputs_TBI.device)
        if starts_TB.shape != (steps, rows):
            raise ValueError(
                f"starts are [{', '.join(map(str, starts_TB.shape))}] and inputs [{steps}, {rows}, …]: both must be "
                "[T, B, …], time first; a transpose is missing or one too many"
            )
        dtype = self.weight_ih_l0.dtype
        if state is None:
            zeros = torch.zeros(self.num_layers, rows, sum(self.state_shape[1:]), dtype=dtype, device=inputs_TBI.device)
            state = self.unpack(zeros.transpose(0, 1))
        # Never in less than the weights' precision: rounding would add up over the steps that a memory lasts.
        kind = inputs_TBI.device.type
        with torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext():
            if isinstance(state, Tensor):
                return self._run_stored(inputs_TBI.to(dtype), state.to(dtype), starts_TB, room)
            return self._run(inputs_TBI.to(dtype), State(state[0].to(dtype), state[1].to(dtype)), starts_TB)

    def _run_stored(
        self, x_TBI: Tensor, memory_BLS: Tensor, starts_TB: Tensor, room: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        outputs, state = self._run(x_TBI, self.unpack(memory_BLS), starts_TB)
        return outputs, self.pack(state)

    def _run(self, x_TBI: Tensor, state: State, starts_TB: Tensor) -> tuple[Tensor, State]:
        if 0 < self.burn_in < x_TBI.shape[0] and torch.is_grad_enabled():
            first, rest = slice(self.burn_in), slice(self.burn_in, None)
            with torch.no_grad():
                warming_up, state = self._layers(x_TBI[first], state, starts_TB[first])
            outputs, state = self._layers(x_TBI[rest], state, starts_TB[rest])
            return torch.cat([warming_up, outputs]), state
        return self._layers(x_TBI, state, starts_TB)

    def _layers(self, x_TBI: Tensor, state: State, starts_TB: Tensor) -> tuple[Tensor, State]:
        last_h, last_c = [], []
        for layer in range(self.num_layers):
            x_TBI, h, c = self._layer(layer, x_TBI, state.h[layer], state.c[layer], starts_TB)
            last_h.append(h)
            last_c.append(c)
        return x_TBI, State(_together(last_h), _together(last_c))

    def _layer(self, layer: int, x_TBI: Tensor, h_BH: Tensor, c_BC: Tensor, starts_TB: Tensor) -> tuple[Tensor, ...]:
        """Outputs [T, B, H], last h and last c of one layer."""
        raise NotImplementedError

    def _weights(self, layer: int) -> list[Tensor]:
        names = WEIGHTS if self.recurrent_weights else WEIGHTS[::2]
        return [getattr(self, f"{name}_l{layer}") for name in names]

    def _parameter(self, name: str, *shape: int) -> None:
        self.register_parameter(name, nn.Parameter(torch.empty(*shape)))

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}"


def _together(layers: list[Tensor]) -> Tensor:
    return torch.stack(layers) if len(layers) > 1 else layers[0].unsqueeze(0)


def forget(starts_N: Tensor, *memories_NH: Tensor) -> tuple[Tensor, ...]:
    """What was remembered (or its gradient), but zero where an episode starts, also where it was NaN."""
    if starts_N.device.type != "cpu":  # to count the rows that start would be a sync
        return tuple(memory.masked_fill(starts_N.unsqueeze(-1), 0) for memory in memories_NH)
    rows = starts_N.nonzero().squeeze(1)  # few: to look at all numbers takes several times as long
    return tuple(memory.index_fill(0, rows, 0) for memory in memories_NH) if len(rows) else memories_NH


def previous(first_BH: Tensor, sequence_TBH: Tensor, starts_TB: Tensor) -> Tensor:
    """What each step found in memory: the value before it, and zero where an episode starts."""
    shifted = torch.cat([first_BH.unsqueeze(0), sequence_TBH[:-1]])
    return forget(starts_TB.flatten(), shifted.flatten(0, 1))[0].view_as(shifted)
