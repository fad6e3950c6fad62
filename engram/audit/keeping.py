"""What a policy keeps between calls, besides its weights: found by looking at all that its modules hold."""

from collections import deque
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import numpy as np
from tensordict import TensorDictBase
from torch import Tensor, nn

OF_TORCH = frozenset(vars(nn.Module())) - {"_buffers", "training"}  # parameters, submodules and hooks
DEPTH = 6


def kept_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Every tensor held by the module, its parts, and containers and plain objects in them, by where it is."""
    return {where: value for where, value in _walk(module) if isinstance(value, Tensor)}


def kept_size(module: nn.Module) -> int:
    """How much is held: elements of tensors and arrays, and entries of containers."""
    return sum(value.numel() if isinstance(value, Tensor) else len(value) for _, value in _walk(module))


def copy_of(thing: Any, module: nn.Module) -> Any:
    """A deep copy of a module, or of what holds one. What cannot be copied (an environment, say) is shared."""
    try:
        return deepcopy(thing)
    except Exception:
        return deepcopy(thing, {id(value): value for value in _uncopiable(module)})


def restore_kept(module: nn.Module, blank: nn.Module) -> None:
    """Give the module all that another one of its kind keeps, but leave its weights alone."""
    pairs = list(zip(module.modules(), blank.modules(), strict=True))
    same: dict[int, Any] = {id(theirs): ours for ours, theirs in pairs}
    for ours, theirs in pairs:
        same |= {id(theirs._parameters[name]): value for name, value in ours._parameters.items() if value is not None}
    for ours, theirs in pairs:
        for name in [name for name in vars(ours) if name not in OF_TORCH and name not in vars(theirs)]:
            delattr(ours, name)
        for name, value in vars(theirs).items():
            if name not in OF_TORCH and name != "training":
                ours.__dict__[name] = deepcopy(value, same)


def _uncopiable(module: nn.Module) -> Iterator[Any]:
    for part in module.modules():
        for name, value in vars(part).items():
            if name not in OF_TORCH and name != "_buffers":
                try:
                    deepcopy(value)
                except Exception:
                    yield value


def _walk(module: nn.Module) -> Iterator[tuple[str, Any]]:
    seen: set[int] = {id(part) for part in module.modules()}
    for name, part in module.named_modules():
        held = {**vars(part), **part._buffers}
        for key, value in held.items():
            if key not in OF_TORCH and key != "_buffers":
                yield from _within(f"{name}.{key}".lstrip("."), value, seen, DEPTH)


def _within(where: str, value: Any, seen: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    if (
        isinstance(value, nn.Parameter | nn.Module | str | bytes | int | float | type)
        or depth == 0
        or id(value) in seen
    ):
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield where, value
        return
    if isinstance(value, np.ndarray):
        yield where, value.ravel()
        return
    if isinstance(value, Mapping | TensorDictBase):
        parts = [(f"{where}[{key!r}]" if where else str(key), part) for key, part in value.items()]
    elif isinstance(value, list | tuple | set | frozenset | deque):
        parts = [(f"{where}[{number}]", part) for number, part in enumerate(value)]
    elif type(value).__module__ not in ("builtins", "types", "functools") and hasattr(value, "__dict__"):
        parts = [(f"{where}.{key}", part) for key, part in vars(value).items()]
    else:
        return
    yield where, parts
    for place, part in parts:
        yield from _within(place, part, seen, depth - 1)
