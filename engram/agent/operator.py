"""Operators of our own, with a backward pass each: `torch.compile` sees them whole."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


class Operator:
    """A function of tensors, the first of them an activation, as one operator; used as a decorator.

    PyTorch's bookkeeping for such operators takes a tenth of a millisecond a call. Where nothing is compiled the
    function is called without it, as an `autograd.Function` if it has a gradient.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        name = f"{function.__name__}_{_version(function)}"
        self.definition = torch.library.custom_op(f"engram::{name}", function, mutates_args=())
        self._operator = getattr(torch.ops.engram, name).default
        self._directly = function

    def __call__(self, *arguments: Any) -> Any:
        if torch.compiler.is_compiling() or type(arguments[0]) is not Tensor:  # a compiler's stand-in
            return self._operator(*arguments)
        return self._directly(*arguments)

    def register_fake(self, fake: Callable[..., Any]) -> None:
        """What the results look like, without computing them."""
        self.definition.register_fake(fake)

    def register_autograd(self, backward: Callable[..., Any], remember: Callable[..., None]) -> None:
        """`remember(ctx, inputs, output)` comes after the function, `backward(ctx, *gradients)` gives its gradient."""
        self.definition.register_autograd(backward, setup_context=remember)
        function = self._directly

        def forward(ctx: Any, *inputs: Any) -> Any:  # and no setup_context, which costs as much again
            output = function(*inputs)
            remember(ctx, inputs, output)
            return output

        passes = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        made: type[torch.autograd.Function] = type(f"engram::{function.__name__}", (torch.autograd.Function,), passes)
        self._directly = made.apply


def _version(function: Callable[..., Any]) -> str:
    """Of the file that a function is in. PyTorch keeps what it compiled on disk, and knows operators by name alone.

    What it kept of an operator that since then takes or gives something else must not be used with this one.
    """
    return hashlib.sha256(Path(function.__code__.co_filename).read_bytes()).hexdigest()[:8]
