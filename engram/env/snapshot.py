"""Saved states of environments: joined over blocks, and split again for any number of blocks."""

from collections.abc import Sequence

import numpy as np

from engram.env.block import Buffers, Episodes

State = dict[str, np.ndarray]

SAVED_BUFFERS = tuple(name for name in Buffers.__dataclass_fields__ if name != "spec")


def join(parts: Sequence[State]) -> State:
    """Concatenates the states of several blocks. A ragged second dimension is padded with zeros."""
    return {name: np.concatenate(_pad([part[name] for part in parts])) for name in parts[0]}


def select(state: State, envs: range) -> State:
    """The part of a joined state that belongs to these environments."""
    return {name: array[envs.start : envs.stop] for name, array in state.items()}


def add_prefix(prefix: str, state: State) -> State:
    return {f"{prefix}.{name}": array for name, array in state.items()}


def with_prefix(prefix: str, state: State) -> State:
    """The entries named by `add_prefix`, without the prefix."""
    start = f"{prefix}."
    return {name.removeprefix(start): array for name, array in state.items() if name.startswith(start)}


def save_buffers(buffers: Buffers) -> State:
    """Copies everything that environments wrote."""
    return {name: getattr(buffers, name).copy() for name in SAVED_BUFFERS}


def fits_buffers(state: State, buffers: Buffers) -> bool:
    """Whether saved buffers have the shapes and dtypes of these."""
    expected = {name: (getattr(buffers, name).shape, getattr(buffers, name).dtype) for name in SAVED_BUFFERS}
    if "actions" not in state:  # of an older version; only policies that read the previous action need it
        del expected["actions"]
    return {name: (array.shape, array.dtype) for name, array in state.items()} == expected


def restore_buffers(state: State, buffers: Buffers) -> bool:
    """Writes saved buffers if the replay gave their observations, bit for bit (a NaN equals itself)."""
    if any(state[name].tobytes() != getattr(buffers, name).tobytes() for name in ("observations", "alive")):
        return False
    for name, array in state.items():
        getattr(buffers, name)[...] = array
    return True


def save_episodes(episodes: Episodes) -> State:
    columns = {"rows": episodes.rows, "returns": episodes.returns, "lengths": episodes.lengths}
    return columns | add_prefix("stats", episodes.stats)


def load_episodes(state: State) -> Episodes:
    return Episodes(state["rows"], state["returns"], state["lengths"], with_prefix("stats", state))


def _pad(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    if arrays[0].ndim < 2:
        return list(arrays)
    width = max(array.shape[1] for array in arrays)
    return [np.pad(array, [(0, 0), (0, width - array.shape[1])] + [(0, 0)] * (array.ndim - 2)) for array in arrays]
