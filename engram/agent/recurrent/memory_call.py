"""Memory around a core: where a call's memory comes from, where episodes start, and where the new memory goes."""

# B rows, T steps, N = B * T, L layers, S floats per layer

import torch
from tensordict import TensorDictBase
from torch import Tensor

from engram.agent.recurrent.core import Core
from engram.agent.recurrent.store import MemoryStore, Rows


def remember_and_run(
    core: Core, store: MemoryStore, name: str, features_NI: Tensor, td: TensorDictBase, rows: int, steps: int
) -> Tensor:
    """Features [N, I] through the core, with the memory these rows have; outputs [N, H]."""
    memory_BLS, ids = recall(store, name, td, rows, steps)
    inputs_TBI = features_NI.view(rows, steps, -1).transpose(0, 1)
    starts_TB = starts_of(td, rows, steps)
    if ids is None:
        outputs_TBH, _ = core(inputs_TBI, core.unpack(memory_BLS), starts_TB)
    else:
        room = store.room(ids)
        outputs_TBH, memory_BLS = core(inputs_TBI, memory_BLS, starts_TB, room)
        if memory_BLS is not room:
            store.write(ids, memory_BLS)
    return outputs_TBH.transpose(0, 1).reshape(rows * steps, -1)


def recall(store: MemoryStore, name: str, td: TensorDictBase, rows: int, steps: int) -> tuple[Tensor, Rows | None]:
    """Memory [B, L, S] at the first step, and the ids to store the new memory under.

    Memory that comes with the td (a segment's start, a look ahead) is used as it is, and nothing is stored: there are
    no ids. Otherwise it is the rows' own; only acting, one step at a time, moves that on.
    """
    memories = td.get("memory", None)
    given = None if memories is None else memories.get(name, None)
    if given is not None:
        return given.reshape(rows, steps, *given.shape[-2:])[:, 0], None
    ids = row_ids(td, rows, steps)
    acting = td.batch_dims == 1 and steps == 1
    return store.read(ids), ids if acting else None


def row_ids(td: TensorDictBase, rows: int, steps: int) -> Rows:
    """The environment rows of a call: `training_env_id_start` and those that follow; from 0 if the td does not say."""
    first = td.get("training_env_id_start", None)
    if first is None:
        first = 0
    if isinstance(first, Tensor):
        # Reading a number costs a sync on accelerators and a graph break when compiled.
        if first.device.type != "cpu" or torch.compiler.is_compiling():
            return first.reshape(-1)[:1] + torch.arange(rows, device=first.device)
        first = int(first.numpy().flat[0]) if first.numel() else 0
    return slice(first, first + rows)


def starts_of(td: TensorDictBase, rows: int, steps: int) -> Tensor:
    """Where an observation is the first of its episode, [T, B]."""
    dones, truncateds = td.get("dones", None), td.get("truncateds", None)
    if dones is None and truncateds is None:
        return torch.zeros(steps, rows, dtype=torch.bool, device=td["env_obs"].device)
    flags = [flag.reshape(rows, steps).bool() for flag in (dones, truncateds) if flag is not None]
    return (flags[0] if len(flags) == 1 else flags[0] | flags[1]).t()
