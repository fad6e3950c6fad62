"""Saved states of environments: joined over blocks, and cut again for whatever blocks there are the next time."""

from collections.abc import Sequence

import numpy as np

from engram.env.block import Buffers, Episodes

State = dict[str, np.ndarray]

_KEPT = tuple(name for name in Buffers.__dataclass_fields__ if name != "actions")


def join(parts: Sequence[State]) -> State:
    """One state of the environments of all parts, in their order; a ragged second dimension is padded with zeros."""
    return {name: np.concatenate(_padded([part[name] for part in parts])) for name in parts[0]}


def cut(state: State, ids: range) -> State:
    return {name: array[ids.start : ids.stop] for name, array in state.items()}


def prefixed(prefix: str, state: State) -> State:
    return {f"{prefix}.{name}": array for name, array in state.items()}


def under(prefix: str, state: State) -> State:
    """The entries that `prefixed` made."""
    start = f"{prefix}."
    return {name.removeprefix(start): array for name, array in state.items() if name.startswith(start)}


def of_buffers(buffers: Buffers) -> State:
    """Copies of all that environments wrote."""
    return {name: getattr(buffers, name).copy() for name in _KEPT}


def fits(state: State, buffers: Buffers) -> bool:
    """Whether a state of buffers is one of such buffers."""
    expected = {name: (getattr(buffers, name).shape, getattr(buffers, name).dtype) for name in _KEPT}
    return {name: (array.shape, array.dtype) for name, array in state.items()} == expected


def write(state: State, buffers: Buffers) -> None:
    for name, array in state.items():
        getattr(buffers, name)[...] = array


def same_observations(state: State, buffers: Buffers) -> bool:
    """To the bit, so that a NaN equals itself."""
    return state["observations"].tobytes() == buffers.observations.tobytes()


def of_episodes(episodes: Episodes) -> State:
    plain = {"rows": episodes.rows, "returns": episodes.returns, "lengths": episodes.lengths}
    return plain | prefixed("stats", episodes.stats)


def to_episodes(state: State) -> Episodes:
    return Episodes(state["rows"], state["returns"], state["lengths"], under("stats", state))


def _padded(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    if arrays[0].ndim < 2:
        return list(arrays)
    width = max(array.shape[1] for array in arrays)
    return [np.pad(array, [(0, 0), (0, width - array.shape[1])] + [(0, 0)] * (array.ndim - 2)) for array in arrays]
