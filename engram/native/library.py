"""Finds the kernels: those installed with the package, else those in the user's cache, built there at first use.

`ENGRAM_NATIVE=0` in the environment switches them off; `ENGRAM_NATIVE=avx2` and the like choose a kind of processor.
"""

import ctypes
import importlib.machinery
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from engram.native.build import HERE, compile_library, fingerprint

SETTING = "ENGRAM_NATIVE"
OFF = ("0", "off", "no", "false")
KINDS = ("avx512", "avx2", "plain")

# What takes arrays and sizes, or gives a size: how many arrays (or structures) and sizes, in that order.
FUNCTIONS = {
    "engram_lstm_forward_scratch": (1, 0),
    "engram_lstm_backward_scratch": (1, 0),
    "engram_token_conv_scratch": (1, 0),
    "engram_layers_forward_scratch": (1, 0),
    "engram_layers_backward_scratch": (1, 0),
    "engram_choices": (7, 3),
    "engram_choices_backward": (7, 3),
    "engram_tanh": (2, 2),
    "engram_tanh_backward": (3, 2),
}

_switched_off = 0
_log = logging.getLogger(__name__)


def kernels() -> ctypes.CDLL | None:
    """The kernels, or None where there are none or they are switched off: then PyTorch computes the same."""
    return None if _switched_off else _library()


@torch.compiler.assume_constant_result
def available() -> bool:
    """Whether the kernels are used; compiled graphs take it as it is when they are made."""
    return kernels() is not None


def usable(x: Tensor) -> bool:
    """Whether the kernels can compute with it: they are there, and it is of float32 on the CPU."""
    return x.dtype == torch.float32 and x.device.type == "cpu" and kernels() is not None


def loaded() -> ctypes.CDLL:
    """The kernels, for what was begun with them."""
    library = _library()
    assert library is not None
    return library


@contextmanager
def without_kernels() -> Iterator[None]:
    """In pure PyTorch meanwhile: to compare the two."""
    global _switched_off
    _switched_off += 1
    try:
        yield
    finally:
        _switched_off -= 1


@cache
def _library() -> ctypes.CDLL | None:
    wanted = os.environ.get(SETTING, "").lower()
    if wanted in OFF:
        return None
    library, problem = _find()
    if library is not None:
        chosen = choose(library, wanted if wanted in KINDS else None)
        problem = None if chosen else f"this processor cannot run the kind {SETTING}={wanted}"
    if problem is not None:
        _log.warning("native kernels are not used, PyTorch computes the same more slowly: %s", problem)
        return None
    return library


def choose(library: ctypes.CDLL, kind: str | None = None) -> str | None:
    """Use the kernels for this kind of processor, by default the best; its name, or None if it is not of that kind."""
    name = library.engram_choose(None if kind is None else kind.encode())
    return None if name is None else name.decode()


def kinds() -> list[str]:
    """The kinds this processor can stand in for, the best first."""
    library = _library()
    if library is None:
        return []
    chosen = library.engram_kind().decode()
    names = [name for name in KINDS if choose(library, name) == name]
    choose(library, chosen)
    return names


def _find() -> tuple[ctypes.CDLL | None, str | None]:
    """The library, or what kept it from being made."""
    installed = [HERE / f"kernels{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES]
    cached = cache_directory() / f"kernels-{fingerprint()}.so"
    for path in (*installed, cached):
        if path.exists() and (library := _open(path)) is not None:
            return library, None
    problem = compile_library(cached)
    if problem is not None:
        return None, problem
    library = _open(cached)
    return library, None if library is not None else f"{cached} cannot be loaded"


def _open(path: Path) -> ctypes.CDLL | None:
    """A library, unless it does not load here or was built from other sources than these."""
    try:
        library = ctypes.CDLL(str(path))
        for function in (library.engram_sources, library.engram_choose, library.engram_kind):
            function.restype = ctypes.c_char_p
        library.engram_choose.argtypes = [ctypes.c_char_p]
        if library.engram_sources().decode() != fingerprint():
            return None
        for name, (arrays, sizes) in FUNCTIONS.items():
            function = getattr(library, name)
            function.argtypes = [ctypes.c_void_p] * arrays + [ctypes.c_long] * sizes
            function.restype = ctypes.c_long
        return library
    except (OSError, AttributeError):
        return None


def cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "engram"
