"""Observations as a policy receives them: named parts, unpacked from rows of bytes, and the action mask."""

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from engram.env.parts import ACTION_MASK, OBSERVATION
from engram.env.spec import EnvSpec

Observations = Tensor | TensorDictBase  # [N, …]; a TensorDict of parts for Dict and Tuple spaces


def torch_dtype(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.zeros(1, dtype)).dtype


def unpack(spec: EnvSpec, rows: Tensor) -> dict[str, Tensor]:
    """Views of the parts [..., *shape] of packed rows [..., bytes], and of the action mask, if there is one."""
    if spec.packing is None:
        return {OBSERVATION: rows}
    leading = rows.shape[:-1]
    return {
        name: rows[..., slot.start : slot.stop].view(torch_dtype(slot.dtype)).view(*leading, *slot.shape)
        for name, slot in spec.packing.slots.items()
    }


def pack(spec: EnvSpec, parts: dict[str, Tensor]) -> Tensor:
    """The inverse of `unpack`."""
    if spec.packing is None:
        return parts[OBSERVATION]
    name, slot = next(iter(spec.packing.slots.items()))
    leading = parts[name].shape[: parts[name].dim() - len(slot.shape)]
    rows = torch.zeros(*leading, spec.packing.size, dtype=torch.uint8, device=parts[name].device)
    for name, view in unpack(spec, rows).items():
        view.copy_(parts[name])
    return rows


def with_parts(spec: EnvSpec, td: TensorDictBase) -> TensorDictBase:
    """A td whose `env_obs` is what the policy reads, with `action_mask` beside it. Parts given as such are kept."""
    rows = td["env_obs"]
    if spec.packing is None or not isinstance(rows, Tensor) or rows.shape[td.batch_dims :] != (spec.packing.size,):
        return td
    parts = unpack(spec, rows)
    seen = td.copy()
    if spec.action_mask:
        seen.set(ACTION_MASK, parts.pop(ACTION_MASK))
    return seen.set("env_obs", TensorDict(parts, td.batch_size) if spec.parts else parts[OBSERVATION])


def example(spec: EnvSpec) -> Observations:
    """Zeros in the form of one observation."""
    zeros = {part.name: torch.zeros(part.shape, dtype=torch_dtype(part.dtype)) for part in spec.all_parts}
    return TensorDict(zeros, batch_size=[]) if spec.parts else zeros[OBSERVATION]


def describe_observations(spec: EnvSpec) -> str:
    """The input of `encode_observations` in words: the shape and dtype of each part."""
    parts = {f"[{part.name!r}]" if spec.parts else "": part for part in spec.all_parts}
    described = (f"{name} {['N', *part.shape]} {part.dtype}".replace("'N'", "N") for name, part in parts.items())
    return f"observations: {', '.join(text.strip() for text in described)}"


def first_tensor(observations: Observations) -> Tensor:
    """Any tensor of the observations, for its device and leading shape."""
    if isinstance(observations, Tensor):
        return observations
    return next(value for value in observations.values(True, True) if isinstance(value, Tensor))
