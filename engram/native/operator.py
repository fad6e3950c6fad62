"""PyTorch's graphs: whether one is being recorded, and custom operators, which `torch.compile` keeps as one node."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def is_traced() -> bool:
    """Whether a graph is being recorded, by `torch.compile` or for export: shapes and branches become part of it."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def is_exported() -> bool:
    """Whether a graph is being recorded for export, by `torch.export`, `torch.onnx` or `torch.jit.trace`.

    It must hold PyTorch's own operators only. What a kernel computes would be a constant in it.
    """
    return torch.compiler.is_exporting() or torch.jit.is_tracing()


class Operator:
    """A decorator that turns a function into one operator. Its first argument is a tensor, fake under a compiler.

    PyTorch's dispatch of custom operators takes 0.1 ms per call. Eager calls bypass it: they run the function
    directly, as an `autograd.Function` if it has a gradient.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        name = f"{function.__name__}_{_version(function)}"
        self.definition = torch.library.custom_op(f"engram::{name}", function, mutates_args=())
        self._operator = getattr(torch.ops.engram, name).default
        self._eager = function

    def __call__(self, *arguments: Any) -> Any:
        if torch.compiler.is_compiling() or type(arguments[0]) is not Tensor:  # a fake tensor
            return self._operator(*arguments)
        return self._eager(*arguments)

    def register_fake(self, fake: Callable[..., Any]) -> None:
        """Shapes and dtypes of the results, for the compiler."""
        self.definition.register_fake(fake)

    def register_autograd(self, backward: Callable[..., Any], save: Callable[..., None]) -> None:
        """`save(ctx, inputs, output)` runs after the function, `backward(ctx, *gradients)` returns its gradient."""
        self.definition.register_autograd(backward, setup_context=save)
        function = self._eager

        def forward(ctx: Any, *inputs: Any) -> Any:  # without setup_context, which doubles the cost of a call
            output = function(*inputs)
            save(ctx, inputs, output)
            return output

        passes = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        name = f"engram::{function.__name__}"
        autograd_function: type[torch.autograd.Function] = type(name, (torch.autograd.Function,), passes)
        self._eager = autograd_function.apply


def _version(function: Callable[..., Any]) -> str:
    """A hash of the function's source file, as part of the operator's name.

    PyTorch caches compiled graphs on disk and knows operators by name only. A new name keeps it from using a graph
    that was compiled for an older signature.
    """
    return hashlib.sha256(Path(function.__code__.co_filename).read_bytes()).hexdigest()[:8]
