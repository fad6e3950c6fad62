"""The token convolution kernel: a convolution of the tokens' box that never builds the box; float32 on the CPU."""

# N rows, M tokens, K features, C channels

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from engram.native.call import Shape, check_tensors, integers, num_threads, pointers, run, scratch, set_pointers

ROWS_PER_THREAD = 32  # fewer are not worth a thread
MAX_SIDE = 16  # cells a side of a window
BYTE_VALUES = 256

Tables = tuple[Tensor, Tensor, Tensor]  # the cell of each location, the index of each feature, its normalisation


class ConvGeometry(NamedTuple):
    """Sizes of a convolution without padding, (height, width) each."""

    window: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]

    @property
    def output(self) -> tuple[int, int]:
        height, width = ((cells - kernel) // stride + 1 for cells, kernel, stride in zip(*self, strict=True))
        return height, width


class TokenConvCall(ctypes.Structure):
    """`struct token_conv` of token_conv.h."""

    _fields_ = [
        *integers("rows tokens features channels threads"),
        *((name, ctypes.c_long * 2) for name in ("window", "kernel", "stride", "output_size")),
        *pointers("bytes"), *integers("bytes_row"),
        *pointers("cell_of_location index_of_feature normalizations weight bias output scratch"),
        *pointers("d_output d_weight d_bias"),
    ]  # fmt: skip


def forward(tokens_NM3: Tensor, tables: Tables, weight: Tensor, bias: Tensor, geometry: ConvGeometry) -> Tensor:
    """The output [N, C, height, width], in channels-last layout."""
    output = weight.new_empty(tokens_NM3.shape[0], *geometry.output, weight.shape[0])
    _run("forward", tokens_NM3, tables, geometry, weight, {"bias": bias, "output": output})
    return output.permute(0, 3, 1, 2)


def backward(
    d_output: Tensor, tokens_NM3: Tensor, tables: Tables, weight: Tensor, geometry: ConvGeometry
) -> tuple[Tensor, Tensor]:
    """Gradients of the weight and the bias."""
    gradients = {"d_weight": weight.new_empty(weight.shape), "d_bias": weight.new_empty(weight.shape[0])}
    tensors = {"d_output": d_output.permute(0, 2, 3, 1), **gradients}
    _run("backward", tokens_NM3, tables, geometry, weight, tensors)
    return gradients["d_weight"], gradients["d_bias"]


def _run(
    direction: str,
    tokens_NM3: Tensor,
    tables: Tables,
    geometry: ConvGeometry,
    weight: Tensor,
    tensors: dict[str, Tensor],
) -> None:
    rows, count, _ = tokens_NM3.shape
    names = ("cell_of_location", "index_of_feature", "normalizations")
    tensors = {**dict(zip(names, tables, strict=True)), "weight": weight, **tensors}
    _check(tokens_NM3, geometry, tensors)
    if rows == 0:
        for name in {"output", "d_weight", "d_bias"} & tensors.keys():
            tensors[name].zero_()
        return
    if tokens_NM3.stride()[1:] != (3, 1):
        tokens_NM3 = tokens_NM3.contiguous()
    call = TokenConvCall(rows, count, weight.shape[1], weight.shape[0], num_threads(rows, ROWS_PER_THREAD))
    call.window, call.kernel, call.stride, call.output_size = *geometry, geometry.output
    call.bytes, call.bytes_row = tokens_NM3.data_ptr(), tokens_NM3.stride(0)
    held = {name: tensor.contiguous() for name, tensor in tensors.items()}
    set_pointers(call, held)
    call.scratch = scratch("token_conv", call)
    run(f"token_conv_{direction}", call)


def _check(tokens_NM3: Tensor, geometry: ConvGeometry, tensors: dict[str, Tensor]) -> None:
    name, (rows, count, _), (channels, features, *_) = "token convolution", tokens_NM3.shape, tensors["weight"].shape
    for window, kernel, stride in zip(*geometry, strict=True):
        if not (0 < kernel <= window <= MAX_SIDE and stride > 0):
            raise ValueError(
                f"{name}: got {geometry}, expected kernels within windows of at most {MAX_SIDE} cells a side"
            )
    check_tensors(name, {"tokens": tokens_NM3}, {"tokens": (rows, count, 3)}, torch.uint8)
    indices = {key: tensors[key] for key in ("cell_of_location", "index_of_feature")}
    check_tensors(name, indices, dict.fromkeys(indices, (BYTE_VALUES,)), torch.long)
    output, weight = (rows, *geometry.output, channels), (channels, features, *geometry.kernel)
    shapes: dict[str, Shape] = {
        "normalizations": (features,), "weight": weight, "bias": (channels,), "output": output,
        "d_output": output, "d_weight": weight, "d_bias": (channels,),
    }  # fmt: skip
    check_tensors(name, {key: tensor for key, tensor in tensors.items() if key in shapes}, shapes)
