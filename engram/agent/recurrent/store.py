"""The memory store, and a call of a core with the memory of a td's rows."""

# N rows of the store (features and outputs: N = B * T), B rows of a call, T steps, L layers, S floats per layer

from collections.abc import Callable, Mapping

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from engram.agent.observations import first_tensor
from engram.native.operator import is_exported, is_traced
from engram.settings import UserError

Rows = Tensor | slice  # row ids [B], or a range of ids, which is faster to read and write


class MemoryStore(nn.Module):
    """Memory of every environment row, in one tensor that doubles until it holds the largest id seen.

    Not part of the weights: its buffers are not in the state dict, and a copy of a policy has its own.
    """

    memory_NLS: Tensor
    known_N: Tensor  # rows that were written since they were last cleared
    carried: Tensor | None = None  # memory of the current call, if the caller carries it: then nothing is stored

    def __init__(self, layers: int, size: int) -> None:
        super().__init__()
        self.register_buffer("memory_NLS", torch.zeros(0, layers, size), persistent=False)
        self.register_buffer("known_N", torch.zeros(0, dtype=torch.bool), persistent=False)

    @property
    def capacity(self) -> int:
        return self.known_N.shape[0]

    def reserve(self, rows: int) -> None:
        """Allocate memory for ids below `rows`, keeping what is stored."""
        if rows <= self.capacity:
            return
        grown = self.memory_NLS.new_zeros(rows, *self.memory_NLS.shape[1:])
        grown[: self.capacity] = self.memory_NLS
        known = self.known_N.new_zeros(rows)
        known[: self.capacity] = self.known_N
        self.memory_NLS, self.known_N = grown, known

    def read(self, rows: Rows) -> Tensor:
        """Memory [B, L, S] of these rows; zero for rows never written.

        A copy, except for a range of rows without gradients: that is a view, valid until the next write.
        """
        if self.carried is not None:
            return self.carried
        if is_exported():
            raise UserError(
                "a traced policy must take its memory as an input, or its current memory becomes a constant: export it "
                "with `engram export`, or trace engram.export.PolicyStep(agent), or give it memory in td['memory']"
            )
        self._grow_for(rows)
        memory = self.memory_NLS[rows]
        return memory.clone() if isinstance(rows, slice) and torch.is_grad_enabled() else memory

    def out(self, rows: Rows) -> Tensor | None:
        """A view of these rows to write their new memory into, or None if it has to go through `write`.

        Only for a range of rows, and only without gradients: then there is no graph to detach from.
        """
        if self.carried is not None or not isinstance(rows, slice) or torch.is_grad_enabled() or is_traced():
            return None
        self._grow_for(rows)
        self.known_N[rows] = True
        return self.memory_NLS[rows]

    def write(self, rows: Rows, memory_BLS: Tensor) -> None:
        if self.carried is not None:
            self.carried = memory_BLS
            return
        self._grow_for(rows)
        memory = self.memory_NLS
        memory[rows] = memory_BLS.detach().to(memory.dtype)
        self.known_N[rows] = True

    def clear(self, env_id: int | None = None) -> None:
        """Clear one row, or all. Unknown rows are ignored."""
        rows = slice(None) if env_id is None else slice(env_id, env_id + 1)
        self.memory_NLS[rows] = 0
        self.known_N[rows] = False

    def known_ids(self) -> list[int]:
        return self.known_N.nonzero().flatten().tolist()

    def load(self, rows: Mapping[int, Tensor]) -> None:
        """Replace all memory by these rows, each [L, S]."""
        self.clear()
        if rows:
            ids = torch.tensor(list(rows), dtype=torch.long, device=self.memory_NLS.device)
            self.write(ids, torch.stack([row.to(self.memory_NLS.device) for row in rows.values()]))

    def _grow_for(self, rows: Rows) -> None:
        if isinstance(rows, slice):
            needed = rows.stop
        elif rows.device.type == "cpu" and not is_traced():
            needed = int(rows.max()) + 1 if rows.numel() else 0
        else:  # reading an id would sync an accelerator and break the compiled graph: call reserve() first
            needed = 0
        if needed > self.capacity:
            self.reserve(max(needed, 2 * self.capacity))


def run_with_memory(
    core: Callable[..., tuple[Tensor, Tensor]],
    store: MemoryStore,
    name: str,
    features_NI: Tensor,
    td: TensorDictBase,
    rows: int,
    steps: int,
) -> Tensor:
    """Run a core, or a function called like it, on features [N, I] with the memory of the td's rows: gives [N, H]."""
    inputs_TBI = features_NI.view(rows, steps, -1).transpose(0, 1)
    starts_TB = episode_starts(td, rows, steps)
    memory_BLS, ids = read_memory(store, name, td, rows, steps)
    out = None if ids is None else store.out(ids)
    outputs_TBH, memory_BLS = core(inputs_TBI, memory_BLS, starts_TB, out)
    if ids is not None and out is None:
        store.write(ids, memory_BLS)
    return outputs_TBH.transpose(0, 1).reshape(rows * steps, -1)


def read_memory(store: MemoryStore, name: str, td: TensorDictBase, rows: int, steps: int) -> tuple[Tensor, Rows | None]:
    """Memory [B, L, S] before the first step, and the ids to store the new memory under; None: do not store it.

    Memory that comes with the td (at the start of a segment, or to bootstrap from) takes precedence and is not stored.
    Otherwise it is read from the store, which only acting, one step at a time, updates.
    """
    memories = td.get("memory", None)
    given = None if memories is None else memories.get(name, None)
    if given is not None:
        return given.reshape(rows, steps, *given.shape[-2:])[:, 0], None
    ids = row_ids(td, rows)
    acting = td.batch_dims == 1 and steps == 1
    return store.read(ids), ids if acting else None


def row_ids(td: TensorDictBase, rows: int) -> Rows:
    """The environment rows of a call: `training_env_id_start` and those that follow; from 0 if the td has none."""
    first = td.get("training_env_id_start", None)
    if first is None:
        first = 0
    if isinstance(first, Tensor):
        # Reading a number would sync an accelerator and break the compiled graph.
        if first.device.type != "cpu" or is_traced():
            return first.reshape(-1)[:1] + torch.arange(rows, device=first.device)
        first = int(first.numpy().flat[0]) if first.numel() else 0
    return slice(first, first + rows)


def episode_starts(td: TensorDictBase, rows: int, steps: int) -> Tensor:
    """Where an observation is the first of its episode, [T, B]: `starts`, or without it `dones | truncateds`."""
    flags = [td.get("starts", None)]
    if flags[0] is None:
        flags = [td.get("dones", None), td.get("truncateds", None)]
    found = [flag.reshape(rows, steps).bool() for flag in flags if flag is not None]
    if not found:
        return torch.zeros(steps, rows, dtype=torch.bool, device=first_tensor(td["env_obs"]).device)
    return (found[0] if len(found) == 1 else found[0] | found[1]).t()
