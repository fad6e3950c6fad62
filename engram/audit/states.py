"""States of other people's policies: tensors in tuples, lists or dicts, with one dimension that counts rows."""

# B rows

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

State = Any  # a tensor, or a tuple, list or dict of states


def map_state(function: Callable[..., Tensor], state: State, *others: State) -> State:
    """The same structure with the function's results in it."""
    if isinstance(state, Tensor):
        return function(state, *others)
    if isinstance(state, Mapping):
        return {key: map_state(function, state[key], *(other[key] for other in others)) for key in state}
    if not isinstance(state, list | tuple):
        return state
    parts = [map_state(function, *pair) for pair in zip(state, *others, strict=True)]
    return type(state)(*parts) if hasattr(state, "_fields") else type(state)(parts)


def leaves(state: State) -> list[Tensor]:
    found: list[Tensor] = []
    map_state(lambda tensor: found.append(tensor) or tensor, state)  # type: ignore[func-returns-value]
    return found


class RowStates:
    """The states of rows by their ids. Rows never seen have the state that `begin(rows)` gives."""

    def __init__(self, begin: Callable[[int], State]) -> None:
        self._begin = begin
        self._row_dims = row_dims(begin(2), begin(3))
        self._rows: dict[int, State] = {}

    def clear(self) -> None:
        self._rows = {}

    def take(self, ids: list[int]) -> State:
        rows = [self._rows[i] if i in self._rows else self._begin(1) for i in ids]
        return map_state(lambda dim, *parts: torch.cat(parts, int(dim)), self._row_dims, *rows)

    def put(self, ids: list[int], state: State) -> None:
        for number, row in enumerate(ids):
            self._rows[row] = map_state(
                lambda dim, part, number=number: part.detach().narrow(int(dim), number, 1).clone(),
                self._row_dims,
                state,
            )

    def select(self, state: State, rows: Any) -> State:
        """Some rows of a state of several."""
        index = torch.as_tensor(rows)
        return map_state(lambda dim, part: part.index_select(int(dim), index), self._row_dims, state)

    def cleared(self, state: State, starts_B: Tensor) -> State:
        """The state with that of a row which has seen nothing, where one starts."""
        fresh = self._begin(starts_B.shape[0])

        def choose(dim: Tensor, part: Tensor, new: Tensor) -> Tensor:
            shape = [1] * part.dim()
            shape[int(dim)] = -1
            return torch.where(starts_B.view(shape), new.to(part.dtype), part)

        return map_state(choose, self._row_dims, state, fresh)

    def numbers(self, ids: list[int]) -> Tensor:
        """[rows, any]"""
        parts = map_state(lambda dim, part: part.movedim(int(dim), 0).flatten(1), self._row_dims, self.take(ids))
        return torch.cat([torch.zeros(len(ids), 0), *leaves(parts)], 1)


def row_dims(two: State, three: State) -> State:
    """Which dimension of each part counts rows: the one that differs between the state of two rows and of three."""
    return map_state(_difference, two, three)


def first_state(policy: nn.Module, rows: int) -> State | None:
    """What rows begin with: what the policy says, or zeros for its first recurrent layer; None if it has none."""
    for name in ("initial_state", "get_initial_state"):
        method = getattr(policy, name, None)
        if callable(method):
            return method(rows)
    for module in policy.modules():
        if isinstance(module, nn.RNNBase):
            layers = module.num_layers * (2 if module.bidirectional else 1)
            return _zeros(policy, (layers, rows, module.proj_size or module.hidden_size), isinstance(module, nn.LSTM))
        if isinstance(module, nn.RNNCellBase):
            return _zeros(policy, (rows, module.hidden_size), isinstance(module, nn.LSTMCell))
    return None


def _zeros(policy: nn.Module, shape: tuple[int, ...], pair: bool) -> State:
    """(h, c) for LSTMs, h for others."""
    h = torch.zeros(shape, dtype=next(policy.parameters()).dtype)
    return (h, h.clone()) if pair else h


def _difference(two: Tensor, three: Tensor) -> Tensor:
    for dim, sizes in enumerate(zip(two.shape, three.shape, strict=True)):
        if sizes == (2, 3):
            return torch.tensor(dim)
    raise ValueError(
        f"no dimension of a state counts rows: it is {list(two.shape)} for two and {list(three.shape)} for three"
    )
