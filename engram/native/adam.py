"""Adam by the kernels: all parameters clipped and moved in one call; float32 on the CPU."""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engram.native import library
from engram.native.call import check_tensors, num_threads, run

NUMBERS_PER_THREAD = 16384  # fewer are not worth waking one for


class AdamCall(ctypes.Structure):
    """`struct adam` of adam.h."""

    _fields_ = [
        *((name, ctypes.c_long) for name in ("arrays", "threads")),
        ("sizes", ctypes.POINTER(ctypes.c_long)),
        *((name, ctypes.POINTER(ctypes.c_void_p)) for name in ("weights", "means", "squares", "steps", "gradients")),
        *((name, ctypes.c_void_p) for name in ("sums", "norms")),
        *((name, ctypes.c_double) for name in ("max_norm", "rate", "beta1", "beta2", "eps", "decay")),
        ("decoupled", ctypes.c_long),
    ]


class Arrays(NamedTuple):
    """Parameters, and what Adam remembers of each: as many tensors of each kind."""

    weights: Sequence[Tensor]
    means: Sequence[Tensor]
    squares: Sequence[Tensor]
    steps: Sequence[Tensor]


class Adam:
    """Steps of some parameters. It keeps where they are: make another one when they move."""

    def __init__(self, arrays: Arrays) -> None:
        shapes = [weights.shape for weights in arrays.weights]
        for name, tensors in arrays._asdict().items():
            _check_shapes(name, tensors, [torch.Size()] * len(shapes) if name == "steps" else shapes)
        self._of_gradients = {f"gradient {place}": shape for place, shape in enumerate(shapes)}
        self.usable = all(_usable(tensor) for tensors in arrays for tensor in tensors)
        self._arrays, self._where = arrays, [weights.data_ptr() for weights in arrays.weights]
        self._count = len(arrays.weights)
        sizes = [weights.numel() for weights in arrays.weights]
        self._numbers, self._sizes = sum(sizes), (ctypes.c_long * self._count)(*sizes)
        self._pointers = [_pointers([tensor.data_ptr() for tensor in tensors]) for tensors in arrays]

    def holds(self, parameters: Sequence[Tensor]) -> bool:
        """Whether these are still its parameters."""
        return [parameter.data_ptr() for parameter in parameters] == self._where

    def step(self, gradients: Sequence[Tensor | None], most: float, *options: float, decoupled: bool) -> Tensor:
        """Clip the gradients to this norm and move the weights. The norms that they had, [len(gradients)].

        `options`: rate, beta1, beta2, eps and decay.
        """
        if not self.usable:
            raise ValueError("Adam: the kernels cannot step these parameters")
        check_tensors("Adam", dict(zip(self._of_gradients, gradients, strict=True)), self._of_gradients)
        threads = num_threads(self._numbers, NUMBERS_PER_THREAD)
        make = self._arrays.weights[0].new_empty
        sums, norms = make(threads * self._count, dtype=torch.float64), make(self._count)
        held = [None if each is None else each.contiguous() for each in gradients]
        pointers = _pointers([None if each is None else each.data_ptr() for each in held])
        arrays = (self._sizes, *self._pointers, pointers, sums.data_ptr(), norms.data_ptr())
        call = AdamCall(self._count, threads, *arrays, most, *options, decoupled)
        run("adam", call)
        return norms


def _check_shapes(name: str, tensors: Sequence[Tensor], shapes: Sequence[torch.Size]) -> None:
    found = [tensor.shape for tensor in tensors]
    if found != shapes:
        raise ValueError(
            f"Adam: {name} must be {[list(each) for each in shapes]}, got {[list(each) for each in found]}"
        )


def _usable(tensor: Tensor) -> bool:
    return library.usable(tensor) and tensor.is_contiguous()


def _pointers(addresses: list[int | None]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(addresses))(*addresses)
