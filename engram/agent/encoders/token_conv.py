"""The token convolution as a custom operator: the native kernel with a gradient, for eager mode and the compiler."""

# N rows, M tokens, C channels

import torch
from torch import Tensor

from engram.agent.operator import Operator
from engram.native import token_conv as native
from engram.native.token_conv import ConvGeometry, Tables


def token_conv(tokens_NM3: Tensor, tables: Tables, weight: Tensor, bias: Tensor, geometry: ConvGeometry) -> Tensor:
    """The convolution of the tokens' box, [N, C, height, width], by the kernel."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return token_conv_op(tokens_NM3, *tables, weight, bias, list(geometry.window), list(geometry.stride))
    return native.forward(tokens_NM3, tables, weight, bias, geometry)


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
    return native.forward(tokens_NM3, tables, weight, bias, _geometry(weight, window, stride))


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
    return native.backward(d_output, tokens_NM3, tables, weight, _geometry(weight, window, stride))


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
