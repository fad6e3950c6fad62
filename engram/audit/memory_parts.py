"""The parts of a policy's memory by name (h, c, one layer of several), so that a fault names its part."""

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from engram.agent.policies.base import Policy
from engram.audit.adapters.base import PolicyAdapter
from engram.audit.adapters.external_state import leaves, map_state

Change = Callable[[Tensor], Tensor]

COUNTS = "counts"  # the store of event counts, which is never h beside c
MAX_PARTS = 12  # a memory with more parts is not examined part by part


class MemoryPart(NamedTuple):
    """One part: the index of its first tensor in the memory, the slice of each tensor, and the number of tensors."""

    name: str
    leaf: int
    inside: tuple[Any, ...] = (...,)
    tensors: int = 1

    def changed(self, memory: Any, change: Change) -> Any:
        """The memory with a function applied to this part."""
        return map_state(self._only(change), memory)

    def value(self, memory: Any) -> Tensor:
        """The numbers of this part, of one tensor."""
        return leaves(memory)[self.leaf][self.inside]

    def numbers(self, memory: Any) -> Tensor:
        """All numbers of this part, of all its tensors."""
        tensors = leaves(memory)[self.leaf : self.leaf + self.tensors]
        return torch.cat([tensor[self.inside].flatten() for tensor in tensors])

    def change_in(self, adapter: PolicyAdapter, ids: list[int], change: Change) -> None:
        """Apply a function to this part of these rows' memory, for acting."""
        adapter.change_memory(ids, self._only(change))

    def _only(self, change: Change) -> Change:
        """A function for all tensors of a memory, one after the other, that changes this part."""
        numbers = count()

        def one(tensor: Tensor) -> Tensor:
            if not self.leaf <= next(numbers) < self.leaf + self.tensors:
                return tensor
            whole = tensor.clone()
            whole[self.inside] = change(tensor[self.inside])
            return whole

        return one


def memory_parts(adapter: PolicyAdapter, memory: Any) -> list[MemoryPart]:
    """The floating parts of what `memory_of` returned; none where it returned None, or they cannot be told apart."""
    policy = adapter.policy
    if isinstance(policy, Policy):
        found = list(_of_policy(policy)) if type(policy).memory_of is Policy.memory_of else []
    else:
        has_cell = any(isinstance(module, nn.LSTM | nn.LSTMCell) for module in policy.modules())
        found, leaf = [], 0
        for name, tensors in _named("", memory, has_cell):
            if all(tensor.is_floating_point() for tensor in tensors):
                found.append(MemoryPart(name, leaf, tensors=len(tensors)))
            leaf += len(tensors)
    return found if len(found) <= MAX_PARTS else []


def _of_policy(policy: Policy) -> Iterator[MemoryPart]:
    """The parts of Engram's own memory, whose tensors are [rows, layers, h and c side by side]."""
    for leaf, (name, (layers, size)) in enumerate(policy.memory_shapes().items()):
        hidden = getattr(getattr(policy, "core", None), "hidden_size", size)
        has_cell = size == 2 * hidden and name != COUNTS
        halves = {"h": slice(0, hidden), "c": slice(hidden, size)} if has_cell else {"memory": slice(None)}
        store = "" if len(policy.memory_shapes()) == 1 else f" of {name}"
        for layer in range(layers):
            which = f" of layer {layer + 1}" if layers > 1 else ""
            for half, columns in halves.items():
                yield MemoryPart(f"{half}{which}{store}", leaf, (slice(None), layer, columns))


def _named(path: str, state: Any, has_cell: bool) -> Iterator[tuple[str, list[Tensor]]]:
    """Names and tensors of a memory, in the order of `map_state`. A dict with one tensor per row counts as one part."""
    if isinstance(state, Tensor):
        yield path or "memory", [state]
    elif _is_by_row(state):
        yield path or "memory", list(state.values())
    elif isinstance(state, Mapping):
        for key, part in state.items():
            yield from _named(f"{path or 'state'}['{key}']", part, has_cell)
    elif isinstance(state, list | tuple):
        layers = has_cell and len(state) > 1 and all(_is_pair(part) for part in state)
        for number, part in enumerate(state):
            if has_cell and _is_pair(state):
                name = "hc"[number] + path
            elif layers:
                name = f" of layer {number + 1}"
            else:
                name = path if len(state) == 1 else f"{path or 'memory'}[{number}]"
            yield from _named(name, part, has_cell)


def _is_by_row(state: Any) -> bool:
    """A dict from environment ids to tensors."""
    return isinstance(state, Mapping) and all(
        isinstance(key, int) and isinstance(value, Tensor) for key, value in state.items()
    )


def _is_pair(state: Any) -> bool:
    """(h, c), as torch's LSTMs have it."""
    if not isinstance(state, list | tuple) or len(state) != 2:
        return False
    if all(_is_by_row(part) and part for part in state):
        return True
    return all(isinstance(part, Tensor) for part in state) and state[0].shape == state[1].shape and state[0].dim() > 1


def noise_like(seed: int) -> Change:
    """A function that adds random numbers to a part of the memory."""
    generator = torch.Generator().manual_seed(seed)
    return lambda part: part + torch.randn(part.shape, generator=generator).to(part.dtype)


def listed(names: list[str]) -> str:
    """`h`, or `h and c`, or `h, c and d`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
