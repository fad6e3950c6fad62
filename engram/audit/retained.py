"""The state that a policy retains between calls besides its weights: tensors, containers, and autograd graphs."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDictBase
from torch import Tensor, nn

from engram.agent.recurrent.store import MemoryStore
from engram.env.spec import EnvSpec

MODULE_INTERNALS = frozenset(vars(nn.Module())) - {"_buffers", "training"}  # parameters, submodules and hooks
DEPTH = 6  # containers and objects within each other that are searched
ACCUMULATES = "torch::autograd::AccumulateGrad"  # the node of a weight


def retained_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Every tensor held by the module, its submodules, and containers and plain objects in them, by path."""
    return {where: value for where, value in _walk(module) if isinstance(value, Tensor)}


def retained_size(module: nn.Module) -> int:
    """The size of the retained state: elements of tensors and arrays, and entries of containers."""
    return sum(retained_sizes(module).values())


def retained_sizes(module: nn.Module) -> dict[str, int]:
    """The elements of every tensor and array, and the entries of every container, by path."""
    return {where: value.numel() if isinstance(value, Tensor) else len(value) for where, value in _walk(module)}


def retained_numbers(module: nn.Module) -> dict[str, float]:
    """Every plain number held by the module, its submodules, and containers and plain objects in them, by path."""
    own = [
        (f"{name}.{key}".lstrip("."), value)
        for name, part in module.named_modules()
        for key, value in vars(part).items()
    ]
    inner = [pair for _, value in _walk(module) if isinstance(value, list) for pair in value]
    return {
        where: value for where, value in own + inner if isinstance(value, int | float) and not isinstance(value, bool)
    }


def changed_by(module: nn.Module, call: Callable[[], object]) -> list[str]:
    """Names of a few tensors and numbers outside of the memory stores that a second call changes."""
    stores = tuple(f"{name}." for name, part in module.named_modules() if isinstance(part, MemoryStore))
    call()
    tensors = {name: value.clone() for name, value in retained_tensors(module).items()}
    numbers = retained_numbers(module)
    call()
    after = retained_tensors(module)
    moved = [name for name, value in tensors.items() if name in after and not torch.equal(after[name], value)]
    moved += [name for name, value in retained_numbers(module).items() if numbers.get(name) != value]
    return [name for name in moved if not (stores and name.startswith(stores))][:3]


def is_module_attribute(module: nn.Module, path: str) -> bool:
    """Whether a path of `retained_tensors` lies in a module or its containers, and not in another object."""
    attribute = path.split("[")[0]
    owner = attribute.rpartition(".")[0]
    return owner in dict(module.named_modules()) and "." not in path[len(attribute) :]


def graph_nodes(tensors: Iterable[Tensor], weights: bool = False) -> set[Any]:
    """Every autograd node that a backward pass from these tensors would visit; those of weights only with `weights`."""
    ahead = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    nodes: set[Any] = set()
    while ahead:
        node = ahead.pop()
        if node not in nodes and (weights or node.name() != ACCUMULATES):
            nodes.add(node)
            ahead.extend(following for following, _ in node.next_functions if following is not None)
    return nodes


def copy_policy(thing: Any, module: nn.Module, constants: Iterable[Any] = ()) -> Any:
    """A deep copy of a module, or of its adapter. Constants and uncopiable values (an environment) are shared."""
    shared = {id(value): value for value in (*constants, *_spaces(module))}
    memo: dict[int, Any] = {**shared}
    try:
        copied = deepcopy(thing, memo)
    except Exception:
        memo = shared | {id(value): value for value in _uncopiable(module)}
        copied = deepcopy(thing, memo)
    for parameter in module.parameters():  # PyTorch copies a parameter without its hooks
        other = memo.get(id(parameter), parameter)
        if other is not parameter and other._backward_hooks is None and other.requires_grad:
            for hook in (parameter._backward_hooks or {}).values():
                other.register_hook(hook)
    return copied


def restore_retained(module: nn.Module, blank: nn.Module) -> None:
    """Give the module everything that another one of its kind retains, but leave its weights alone."""
    pairs = list(zip(module.modules(), blank.modules(), strict=True))
    same: dict[int, Any] = {id(theirs): ours for ours, theirs in pairs}
    for ours, theirs in pairs:
        same |= {id(theirs._parameters[name]): value for name, value in ours._parameters.items() if value is not None}
    for ours, theirs in pairs:
        for name in [name for name in vars(ours) if name not in MODULE_INTERNALS and name not in vars(theirs)]:
            delattr(ours, name)
        for name, value in vars(theirs).items():
            if name not in MODULE_INTERNALS and name != "training":
                ours.__dict__[name] = deepcopy(value, same)


def _spaces(module: nn.Module) -> Iterator[Any]:
    """Descriptions of the environment, which nothing changes: copying them takes longer than copying weights."""
    for part in module.modules():
        yield from (value for value in vars(part).values() if isinstance(value, EnvSpec | spaces.Space))


def _uncopiable(module: nn.Module) -> Iterator[Any]:
    for part in module.modules():
        for name, value in vars(part).items():
            if name not in MODULE_INTERNALS and name != "_buffers":
                try:
                    deepcopy(value)
                except Exception:
                    yield value


def _walk(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Paths and values in a module: tensors, flat arrays, and containers as lists of (path, entry)."""
    seen: set[int] = {id(part) for part in module.modules()}
    for name, part in module.named_modules():
        for key, value in {**vars(part), **part._buffers}.items():
            if key not in MODULE_INTERNALS and key != "_buffers":
                yield from _within(f"{name}.{key}".lstrip("."), value, seen, DEPTH)


def _within(path: str, value: Any, seen: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    """A value as `_walk` yields it, then what it holds, down to this depth. `seen`: the ids of values to leave out."""
    if (
        isinstance(value, nn.Parameter | nn.Module | str | bytes | int | float | type)
        or depth == 0
        or id(value) in seen
    ):
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield path, value
        return
    if isinstance(value, np.ndarray):
        yield path, value.ravel()
        return
    if isinstance(value, Mapping | TensorDictBase):
        parts = [(f"{path}[{key!r}]" if path else str(key), part) for key, part in value.items()]
    elif isinstance(value, list | tuple | set | frozenset | deque):
        parts = [(f"{path}[{number}]", part) for number, part in enumerate(value)]
    elif type(value).__module__ not in ("builtins", "types", "functools") and hasattr(value, "__dict__"):
        parts = [(f"{path}.{key}", part) for key, part in vars(value).items()]
    else:
        return
    yield path, parts
    for inner, part in parts:
        yield from _within(inner, part, seen, depth - 1)
