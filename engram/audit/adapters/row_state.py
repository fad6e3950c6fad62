"""Recurrent state outside the policy: tensors in tuples, lists or dicts, with one dimension that counts rows."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

State = Any  # a tensor, or a tuple, list or dict of states


def map_state(function: Callable[..., Tensor], state: State, *others: State) -> State:
    """Apply a function to every tensor and keep the structure."""
    if isinstance(state, Tensor):
        return function(state, *others)
    if isinstance(state, Mapping):
        return {key: map_state(function, state[key], *(other[key] for other in others)) for key in state}
    if not isinstance(state, list | tuple):
        return state
    parts = [map_state(function, *pair) for pair in zip(state, *others, strict=True)]
    return type(state)(*parts) if hasattr(state, "_fields") else type(state)(parts)


def leaves(state: State) -> list[Tensor]:
    """Every tensor in a state."""
    found: list[Tensor] = []
    map_state(lambda tensor: found.append(tensor) or tensor, state)  # type: ignore[func-returns-value]
    return found


class RowStates:
    """States by environment id. Unknown rows have the state that `initial(rows)` returns."""

    def __init__(self, initial: Callable[[int], State]) -> None:
        self._initial = initial
        self._row_dims = row_dims(initial(2), initial(3))
        self._rows: dict[int, State] = {}

    def clear(self) -> None:
        self._rows = {}

    def take(self, ids: list[int]) -> State:
        rows = [self._rows[i] if i in self._rows else self._initial(1) for i in ids]
        return map_state(lambda dim, *parts: torch.cat(parts, int(dim)), self._row_dims, *rows)

    def put(self, ids: list[int], state: State) -> None:
        for number, row in enumerate(ids):
            self._rows[row] = map_state(
                lambda dim, part, number=number: part.detach().narrow(int(dim), number, 1).clone(),
                self._row_dims,
                state,
            )

    def select(self, state: State, rows: list[int]) -> State:
        """Some rows of a batched state."""
        index = torch.as_tensor(rows)
        return map_state(lambda dim, part: part.index_select(int(dim), index), self._row_dims, state)

    def cleared(self, state: State, starts_B: Tensor) -> State:
        """The state with the initial state in rows that start an episode."""
        fresh = self._initial(starts_B.shape[0])

        def choose(dim: Tensor, part: Tensor, new: Tensor) -> Tensor:
            shape = [1] * part.dim()
            shape[int(dim)] = -1
            return torch.where(starts_B.view(shape), new.to(part.dtype), part)

        return map_state(choose, self._row_dims, state, fresh)

    def numbers(self, ids: list[int]) -> Tensor:
        """The states of these rows as numbers [rows, any]."""
        parts = map_state(lambda dim, part: part.movedim(int(dim), 0).flatten(1), self._row_dims, self.take(ids))
        return torch.cat([torch.zeros(len(ids), 0), *leaves(parts)], 1)


def row_dims(two: State, three: State) -> State:
    """The dimension of each part that counts rows: it differs between states of two rows and of three."""
    return map_state(_row_dim, two, three)


def _row_dim(two: Tensor, three: Tensor) -> Tensor:
    for dim, sizes in enumerate(zip(two.shape, three.shape, strict=True)):
        if sizes == (2, 3):
            return torch.tensor(dim)
    raise ValueError(
        f"no dimension of the state counts rows: it is {list(two.shape)} for two rows and {list(three.shape)} for three"
    )


def declared_initial_state(policy: nn.Module, rows: int) -> State | None:
    """The result of the policy's own `initial_state(rows)`; None if it has no such method."""
    for name in ("initial_state", "get_initial_state"):
        method = getattr(policy, name, None)
        if callable(method):
            return method(rows)
    return None


def zero_states(policy: nn.Module, rows: int) -> list[State]:
    """Zeros for each recurrent layer of torch's: (h, c) for an LSTM, h for others."""
    dtype = next(policy.parameters(), torch.zeros(())).dtype
    states: list[State] = []
    for module in policy.modules():
        if isinstance(module, nn.RNNBase):
            layers = module.num_layers * (2 if module.bidirectional else 1)
            h = torch.zeros(layers, rows, module.proj_size or module.hidden_size, dtype=dtype)
            c = torch.zeros(layers, rows, module.hidden_size, dtype=dtype)
            states.append((h, c) if isinstance(module, nn.LSTM) else h)
        elif isinstance(module, nn.RNNCellBase):
            h = torch.zeros(rows, module.hidden_size, dtype=dtype)
            states.append((h, h.clone()) if isinstance(module, nn.LSTMCell) else h)
    return states
