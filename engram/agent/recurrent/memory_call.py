"""One call of a core for a td: reads the rows' memory, runs the core and stores the new memory."""

# B rows, T steps, N = B * T, L layers, S floats per layer

import torch
from tensordict import TensorDictBase
from torch import Tensor

from engram.agent.observations import first_tensor
from engram.agent.recurrent.core import Core
from engram.agent.recurrent.store import MemoryStore, Rows
from engram.tracing import is_traced


def run_with_memory(
    core: Core, store: MemoryStore, name: str, features_NI: Tensor, td: TensorDictBase, rows: int, steps: int
) -> Tensor:
    """Features [N, I] through the core with the memory of the td's rows; outputs [N, H]."""
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

    Memory that comes with the td (at the start of a segment, or for a look ahead) takes precedence and is not stored.
    Otherwise it is read from the store, and only acting, one step at a time, updates that.
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
