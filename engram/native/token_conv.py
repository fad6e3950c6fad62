"""A convolution straight from tokens by the kernels: float32 on the CPU."""

# N rows, M tokens, K features, C channels

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from engram.native.library import loaded
from engram.native.shapes import Shape, expect
from engram.native.threads import scratch, threads_for

ROWS_PER_THREAD = 32
SIDE = 16  # cells of a window at most
BYTES = 256  # there are so many different ones


class Geometry(NamedTuple):
    """Sizes of a convolution without padding, (height, width) each."""

    window: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]

    @property
    def output(self) -> tuple[int, int]:
        down, across = ((cells - kernel) // stride + 1 for cells, kernel, stride in zip(*self, strict=True))
        return down, across


class Job(ctypes.Structure):
    """`struct token_conv` of token_conv.h."""

    _fields_ = [
        *((name, ctypes.c_long) for name in ("rows", "tokens", "features", "channels", "threads")),
        *((name, ctypes.c_long * 2) for name in ("window", "kernel", "stride", "output_size")),
        ("bytes", ctypes.c_void_p),
        ("bytes_row", ctypes.c_long),
        *((name, ctypes.c_void_p) for name in ("cell_of_location", "place_of_feature", "normalizations")),
        *((name, ctypes.c_void_p) for name in ("weight", "bias", "output", "scratch")),
        *((name, ctypes.c_void_p) for name in ("d_output", "d_weight", "d_bias")),
    ]


def forward(
    tokens_NM3: Tensor, tables: tuple[Tensor, Tensor, Tensor], weight: Tensor, bias: Tensor, geometry: Geometry
) -> Tensor:
    """The output [N, C, height, width], channels innermost in memory.

    `tables`: the cell of each location and the place of each feature, and what values of each are divided by.
    """
    output = weight.new_empty(tokens_NM3.shape[0], *geometry.output, weight.shape[0])
    _run("forward", tokens_NM3, tables, geometry, weight, {"bias": bias, "output": output})
    return output.permute(0, 3, 1, 2)


def backward(
    d_output: Tensor, tokens_NM3: Tensor, tables: tuple[Tensor, Tensor, Tensor], weight: Tensor, geometry: Geometry
) -> tuple[Tensor, Tensor]:
    """Gradients of the weight and the bias."""
    made = {"d_weight": weight.new_empty(weight.shape), "d_bias": weight.new_empty(weight.shape[0])}
    held = {"d_output": d_output.permute(0, 2, 3, 1)}
    _run("backward", tokens_NM3, tables, geometry, weight, held | made)
    return made["d_weight"], made["d_bias"]


def _run(
    direction: str,
    tokens_NM3: Tensor,
    tables: tuple[Tensor, Tensor, Tensor],
    geometry: Geometry,
    weight: Tensor,
    tensors: dict[str, Tensor],
) -> None:
    library = loaded()
    rows, count, _ = tokens_NM3.shape
    _check(tokens_NM3, tables, geometry, weight, tensors)
    if rows == 0:
        for tensor in tensors.values():
            tensor.zero_()
        return
    if tokens_NM3.stride()[1:] != (3, 1):
        tokens_NM3 = tokens_NM3.contiguous()
    job = Job(rows, count, weight.shape[1], weight.shape[0], threads_for(rows, ROWS_PER_THREAD))
    job.window, job.kernel, job.stride, job.output_size = *geometry, geometry.output
    job.bytes, job.bytes_row = tokens_NM3.data_ptr(), tokens_NM3.stride(0)
    names = ("cell_of_location", "place_of_feature", "normalizations", "weight")
    held = {
        name: tensor.contiguous()
        for name, tensor in ({**dict(zip(names, (*tables, weight), strict=True)), **tensors}).items()
    }
    for name, tensor in held.items():
        setattr(job, name, tensor.data_ptr())
    job.scratch = scratch(library.engram_token_conv_scratch(ctypes.byref(job)))
    getattr(library, f"engram_token_conv_{direction}")(ctypes.byref(job))


def _check(
    tokens_NM3: Tensor,
    tables: tuple[Tensor, Tensor, Tensor],
    geometry: Geometry,
    weight: Tensor,
    tensors: dict[str, Tensor],
) -> None:
    kernel, (rows, count, _), (channels, features, *_) = "convolution of tokens", tokens_NM3.shape, weight.shape
    for window, side, stride in zip(*geometry, strict=True):
        if not (0 < side <= window <= SIDE and stride > 0):
            raise ValueError(f"{kernel}: {geometry} must have kernels inside windows of {SIDE} cells a side at most")
    expect(kernel, {"tokens": tokens_NM3}, {"tokens": (rows, count, 3)}, torch.uint8)
    indices = {"cell_of_location": tables[0], "place_of_feature": tables[1]}
    expect(kernel, indices, dict.fromkeys(indices, (BYTES,)), torch.long)
    of_output, of_weight = (rows, *geometry.output, channels), (channels, features, *geometry.kernel)
    shapes: dict[str, Shape] = dict.fromkeys(tensors, (channels,)) | {
        "output": of_output, "d_output": of_output, "weight": of_weight, "d_weight": of_weight,
        "normalizations": (features,),
    }  # fmt: skip
    expect(kernel, tensors | {"normalizations": tables[2], "weight": weight}, shapes)
