"""Which call in the policy's code changes a gradient: a hook, a detach(), or a block without gradients."""

import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from engram.audit.source_location import ENGRAM, short_path

Gradient = TypeVar("Gradient")
NOT_THEIRS = ("site-packages", f"{ENGRAM}/audit", "<", "contextlib")  # in the paths of files
MOST_LINES = 6  # that are tried one by one
DETACHING = {Tensor.detach: "detach()", torch.detach: "detach()", Tensor.data.__get__: ".data"}  # type: ignore[attr-defined]


class Ignoring(TorchFunctionMode):
    """Within this, some calls do nothing; it notes their lines. With `only`, those of other lines are left alone."""

    def __init__(self, only: str = "") -> None:
        super().__init__()
        self.lines: list[str] = []
        self._only = only

    def ignores(self, what: str) -> bool:
        line = f"{what} in {calling_line()}"
        if line not in self.lines:
            self.lines.append(line)
        return self._only in ("", line)


class WithoutHooks(Ignoring):
    """No hook is put on a tensor."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.register_hook and self.ignores("register_hook()"):
            return RemovableHandle(OrderedDict())
        return func(*args, **(kwargs or {}))


class NothingDetached(Ignoring):
    """`detach()`, `.data` and `no_grad` do nothing: gradients flow through what is detached."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in DETACHING and self.ignores(DETACHING[func]):
            return args[0]
        if getattr(func, "__name__", "") == "_set_grad_enabled" and not args[0] and self.ignores("no_grad()"):
            return None
        return func(*args, **(kwargs or {}))


def culprit(compute: Callable[[], Gradient], is_right: Callable[[Gradient], bool]) -> str:
    """The calls without which a gradient is right, with their lines; nothing if there are none."""

    def right_without(mode: Ignoring) -> bool:
        try:
            with mode:
                gradient = compute()
            return is_right(gradient)
        except Exception:
            return False

    for kind in (WithoutHooks, NothingDetached):
        mode = kind()
        if right_without(mode) and mode.lines:
            lines = mode.lines if len(mode.lines) > 1 else []
            return next(
                (line for line in lines[:MOST_LINES] if right_without(kind(line))), " and ".join(mode.lines[:2])
            )
    return ""


def calling_line() -> str:
    """The innermost line outside of torch and the audit."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not any(part in file for part in NOT_THEIRS):
            return f"{short_path(file)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "?"
