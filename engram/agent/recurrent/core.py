"""Recurrent cores: `core(inputs, memory, starts) -> (outputs, memory)`, with exact episode boundaries.

`starts` is true where an observation is the first of an episode. There the row's memory is zero before the step, and
neither a value nor a gradient crosses. Acting is one step, learning a whole segment: the same call.
"""

# T steps, B rows, I input size, H hidden size, L layers, S floats of memory per layer (H, or 2H for h beside c)

from collections.abc import Callable
from contextlib import nullcontext
from typing import ClassVar

import torch
from torch import Tensor, nn

from engram.native.operator import is_exported, is_traced
from engram.settings import UserError

FORGET_GATE = 1  # among an LSTM's gates i, f, g, o

Layer = Callable[..., tuple[Tensor, Tensor]]  # (x_TBI, memory_BS, starts_TB, *weights) -> (outputs_TBH, memory_BS)


class Core(nn.Module):
    """Stacked recurrent layers. Parameters have the names and shapes of `torch.nn.LSTM` and `torch.nn.GRU`.

    A core defines one layer in plain PyTorch as `layer`. `kernel` computes the same faster; a subclass that overrides
    `layer` runs without it.
    """

    gates: int  # blocks of H rows in a weight
    has_cell = False  # memory is h beside c, not h alone
    has_recurrent_weights = True
    burn_in = 0  # first steps of a segment that only update memory: they get no gradient
    layer: ClassVar[Layer]
    kernel: ClassVar[Layer | None] = None
    weight_ih_l0: nn.Parameter

    def __init_subclass__(cls) -> None:
        if "layer" in cls.__dict__ and "kernel" not in cls.__dict__:
            cls.kernel = None

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        for layer in range(num_layers):
            for name, shape in self.shapes(input_size if layer == 0 else hidden_size).items():
                self.register_parameter(f"{name}_l{layer}", nn.Parameter(torch.empty(shape)))
        self.reset_parameters()

    def shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        """The parameters of a layer, in the order in which `layer` takes them."""
        rows, size = self.gates * self.hidden_size, self.hidden_size
        if not self.has_recurrent_weights:
            return {"weight_ih": (rows, input_size), "bias_ih": (rows,)}
        return {"weight_ih": (rows, input_size), "weight_hh": (rows, size), "bias_ih": (rows,), "bias_hh": (rows,)}

    @property
    def memory_shape(self) -> tuple[int, int]:
        """Layers and floats per layer of one row's memory."""
        return self.num_layers, self.hidden_size * (2 if self.has_cell else 1)

    def reset_parameters(self) -> None:
        """Orthogonal weights per gate. Biases are 0, except 1 for an LSTM's forget gate, so that it starts by
        remembering; a bias of 1 on every gate would saturate them."""
        for name, parameter in self.named_parameters():
            if name.startswith("weight"):
                for gate in parameter.detach().chunk(self.gates):
                    nn.init.orthogonal_(gate)
            else:
                nn.init.zeros_(parameter)
            if self.has_cell and name.startswith("bias_ih"):
                nn.init.ones_(parameter.detach().chunk(self.gates)[FORGET_GATE])

    def spread_time_scales(self, horizon: int) -> None:
        """Let half of an LSTM's units remember for up to `horizon` steps (chrono initialisation), the others for a few.

        A forget gate with bias 1 keeps 0.73 per step: after 20 steps neither memory nor gradient is left.
        """
        if not self.has_cell or horizon < 3:
            return
        half = self.hidden_size // 2
        for layer in range(self.num_layers):
            i, f, _, _ = getattr(self, f"bias_ih_l{layer}").detach().chunk(self.gates)
            f[half:] = torch.empty_like(f[half:]).uniform_(1, horizon - 1).log()
            i[half:] = -f[half:]

    def initial_memory(self, rows: int) -> Tensor:
        """Empty memory [B, L, S]."""
        return self.weight_ih_l0.new_zeros(rows, *self.memory_shape)

    def forward(
        self, inputs_TBI: Tensor, memory_BLS: Tensor, starts_TB: Tensor, out: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Outputs [T, B, H] and the memory [B, L, S] after the last step, which is `out` if given.

        `out` may be `memory_BLS` itself; it is only for calls without gradients.
        """
        self._check(inputs_TBI, starts_TB)
        dtype, device = self.weight_ih_l0.dtype, inputs_TBI.device.type
        # Always in the weights' precision: with less, rounding errors add up for as long as memory lasts.
        with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
            x_TBI, memory_BLS = inputs_TBI.to(dtype), memory_BLS.to(dtype)
            if 0 < self.burn_in < len(x_TBI) and torch.is_grad_enabled():
                with torch.no_grad():
                    first, memory_BLS = self._run(x_TBI[: self.burn_in], memory_BLS, starts_TB[: self.burn_in])
                rest, memory_BLS = self._run(x_TBI[self.burn_in :], memory_BLS, starts_TB[self.burn_in :])
                return torch.cat([first, rest]), memory_BLS
            return self._run(x_TBI, memory_BLS, starts_TB, out)

    def _run(
        self, x_TBI: Tensor, memory_BLS: Tensor, starts_TB: Tensor, out: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        kernel = None if is_exported() else type(self).kernel
        run = kernel or type(self).layer
        last = []
        for layer, memory_BS in enumerate(memory_BLS.unbind(1)):
            x_TBI, memory_BS = run(x_TBI, memory_BS, starts_TB, *self._weights(layer))
            last.append(memory_BS)
        memory_BLS = torch.stack(last, dim=1) if len(last) > 1 else last[0].unsqueeze(1)
        return x_TBI, memory_BLS if out is None else out.copy_(memory_BLS)

    def _check(self, inputs_TBI: Tensor, starts_TB: Tensor) -> None:
        if inputs_TBI.dim() != 3 or inputs_TBI.shape[2] != self.input_size:
            raise UserError(
                f"{type(self).__name__}: inputs are {list(inputs_TBI.shape)}, expected [T, B, {self.input_size}]: "
                "create the core with the input_size that it is given"
            )
        if starts_TB.shape != inputs_TBI.shape[:2]:
            raise ValueError(
                f"starts are {list(starts_TB.shape)}, inputs are {list(inputs_TBI.shape)}: both must be [T, B, …], "
                "time first; is a transpose missing?"
            )

    def _weights(self, layer: int) -> list[Tensor]:
        return [getattr(self, f"{name}_l{layer}") for name in self.shapes(self.input_size)]

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}"


def clear(starts_N: Tensor, *memories_NH: Tensor) -> tuple[Tensor, ...]:
    """Memories (or their gradients) with zeros where an episode starts, even over NaN."""
    if starts_N.device.type != "cpu" or is_traced():  # counting starts would sync or break the graph
        return tuple(memory.masked_fill(starts_N.unsqueeze(-1), 0) for memory in memories_NH)
    rows = starts_N.nonzero().squeeze(1)  # few: on CPUs this is several times faster than a mask over all rows
    return tuple(memory.index_fill(0, rows, 0) for memory in memories_NH) if len(rows) else memories_NH


def before_each_step(first_BH: Tensor, sequence_TBH: Tensor, starts_TB: Tensor) -> Tensor:
    """The memory that each step of a sequence started from: the previous step's, or zero at an episode start."""
    shifted = torch.cat([first_BH.unsqueeze(0), sequence_TBH[:-1]])
    return clear(starts_TB.flatten(), shifted.flatten(0, 1))[0].view_as(shifted)
