"""The token convolution: convolves a box of tokens (encoders/box.py) without building it; float32 on the CPU."""

# N rows, M tokens, K features, C channels

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from engram.native.library import Shape, check_tensors, integers, num_threads, pointers, run, scratch, set_pointers
from engram.native.operator import Operator

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


def token_conv(tokens_NM3: Tensor, tables: Tables, weight: Tensor, bias: Tensor, geometry: ConvGeometry) -> Tensor:
    """The convolution of the box of tokens, [N, C, height, width], with a gradient, also under `torch.compile`."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return token_conv_op(tokens_NM3, *tables, weight, bias, list(geometry.window), list(geometry.stride))
    return forward(tokens_NM3, tables, weight, bias, geometry)


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


# The kernel as a custom operator, with a gradient and a fake implementation for the compiler.


@Operator
def token_conv_op(
    tokens_NM3: Tensor,
    cell_of_location: Tensor,
    index_of_feature: Tensor,
    normalizations: Tensor,
    weight: Tensor,
    bias: Tensor,
    window: list[int],
    stride: list[int],
) -> Tensor:
    tables = (cell_of_location, index_of_feature, normalizations)
    return forward(tokens_NM3, tables, weight, bias, _geometry(weight, window, stride))


@token_conv_op.register_fake
def _(tokens_NM3, cell_of_location, index_of_feature, normalizations, weight, bias, window, stride):
    output = _geometry(weight, window, stride).output
    return weight.new_empty(tokens_NM3.shape[0], *output, weight.shape[0]).permute(0, 3, 1, 2)


@Operator
def token_conv_backward(
    d_output: Tensor,
    tokens_NM3: Tensor,
    cell_of_location: Tensor,
    index_of_feature: Tensor,
    normalizations: Tensor,
    weight: Tensor,
    window: list[int],
    stride: list[int],
) -> tuple[Tensor, Tensor]:
    """Gradients of the weight and the bias."""
    tables = (cell_of_location, index_of_feature, normalizations)
    return backward(d_output, tokens_NM3, tables, weight, _geometry(weight, window, stride))


@token_conv_backward.register_fake
def _(d_output, tokens_NM3, cell_of_location, index_of_feature, normalizations, weight, window, stride):
    return torch.empty_like(weight), weight.new_empty(weight.shape[0])


def _save(ctx, inputs, output) -> None:
    *tensors, _, ctx.window, ctx.stride = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx, d_output):
    d_weight, d_bias = token_conv_backward(d_output, *ctx.saved_tensors, ctx.window, ctx.stride)
    return None, None, None, None, d_weight, d_bias, None, None


token_conv_op.register_autograd(_differentiate, _save)


def _geometry(weight: Tensor, window: list[int], stride: list[int]) -> ConvGeometry:
    return ConvGeometry((window[0], window[1]), (weight.shape[2], weight.shape[3]), (stride[0], stride[1]))
