"""A convolution that reads tokens without drawing a box: by native kernels, or by sums over the tokens there are."""

# N rows, M tokens, K features, C channels, H x W cells of the window

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from engram.agent.encoders.tokens import decode
from engram.agent.recurrent.operator import Operator
from engram.env.spec import EMPTY_LOCATION
from engram.native import token_conv as native
from engram.native.library import available
from engram.native.token_conv import Geometry

ROWS_AT_ONCE = 512  # in PyTorch: what is computed of them stays in cache


def convolve(
    tokens_NM3: Tensor, tables: tuple[Tensor, Tensor, Tensor], weight: Tensor, bias: Tensor, sizes: Geometry
) -> Tensor:
    """The convolution of the tokens' box, [N, C, height, width], without drawing it: as fast as this device allows."""
    if not available():
        parts = [sum_over_tokens(part, tables, weight, bias, sizes) for part in tokens_NM3.split(ROWS_AT_ONCE)]
        return torch.cat(parts)
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return token_conv(tokens_NM3, *tables, weight, bias, list(sizes.window), list(sizes.stride))
    return native.forward(tokens_NM3, tables, weight, bias, sizes)


def sum_over_tokens(
    tokens_NM3: Tensor, tables: tuple[Tensor, Tensor, Tensor], weight: Tensor, bias: Tensor, sizes: Geometry
) -> Tensor:
    """The same in PyTorch: an output cell is a sum over the tokens in its window, of value times a weight's column."""
    rows, features, cells = tokens_NM3.shape[0], weight.shape[1], sizes.window[0] * sizes.window[1]
    there = (tokens_NM3[..., 0] != EMPTY_LOCATION).flatten().nonzero().squeeze(1)
    row = there // tokens_NM3.shape[1]
    tokens = decode(tokens_NM3.reshape(-1, 3)[there], *tables)
    places = (row * cells + tokens.cells) * features + tokens.features
    places = torch.where(tokens.real, places, rows * cells * features)
    order = torch.arange(len(places), dtype=torch.int32)
    writers = torch.empty(rows * cells * features + 1, dtype=torch.int32).scatter_(
        0, places, order
    )  # in order, on CPUs
    last = ((writers[places] == order) & tokens.real).nonzero().squeeze(1)
    row, cell, value = row[last], tokens.cells[last], tokens.values[last]
    column = tokens.features[last] * (weight.shape[2] * weight.shape[3])
    columns, values, counts = [], [], []
    for within in places_within(sizes):
        place = within[cell]
        covered = (place >= 0).nonzero().squeeze(1)
        columns.append(column[covered] + place[covered])
        values.append(value[covered])
        counts.append(torch.bincount(row[covered], minlength=rows))
    count = torch.cat(counts)
    sums = F.embedding_bag(
        torch.cat(columns),
        weight.flatten(1).t(),
        count.cumsum(0) - count,
        mode="sum",
        per_sample_weights=torch.cat(values),
    )
    height, width = sizes.output
    return (sums + bias).view(height, width, rows, weight.shape[0]).permute(2, 3, 0, 1)


@cache
def places_within(sizes: Geometry) -> Tensor:
    """[output cells, window cells]: where in an output cell's window, row by row, a cell lies; -1 where it does not."""
    cells = torch.arange(sizes.window[0] * sizes.window[1], dtype=torch.float).view(1, 1, *sizes.window)
    covered = F.unfold(cells, sizes.kernel, stride=sizes.stride)[0].long().t()  # [output cells, kernel cells]
    places = torch.arange(covered.shape[1]).expand_as(covered)
    return torch.full((len(covered), cells.numel()), -1).scatter_(1, covered, places)


def geometry(weight: Tensor, window: list[int], stride: list[int]) -> Geometry:
    return Geometry((window[0], window[1]), (weight.shape[2], weight.shape[3]), (stride[0], stride[1]))


@Operator
def token_conv(
    tokens_NM3: Tensor,
    cell_of_location: Tensor,
    place_of_feature: Tensor,
    normalizations: Tensor,
    weight: Tensor,
    bias: Tensor,
    window: list[int],
    stride: list[int],
) -> Tensor:
    """[N, C, height, width]: the convolution of the tokens' box by native kernels, which do not draw it."""
    tables = (cell_of_location, place_of_feature, normalizations)
    return native.forward(tokens_NM3, tables, weight, bias, geometry(weight, window, stride))


@token_conv.register_fake
def _(tokens_NM3, cell_of_location, place_of_feature, normalizations, weight, bias, window, stride):
    output = geometry(weight, window, stride).output
    return weight.new_empty(tokens_NM3.shape[0], *output, weight.shape[0]).permute(0, 3, 1, 2)


@Operator
def token_conv_backward(
    d_output: Tensor,
    tokens_NM3: Tensor,
    cell_of_location: Tensor,
    place_of_feature: Tensor,
    normalizations: Tensor,
    weight: Tensor,
    window: list[int],
    stride: list[int],
) -> tuple[Tensor, Tensor]:
    """Gradients of the weight and the bias."""
    tables = (cell_of_location, place_of_feature, normalizations)
    return native.backward(d_output, tokens_NM3, tables, weight, geometry(weight, window, stride))


@token_conv_backward.register_fake
def _(d_output, tokens_NM3, cell_of_location, place_of_feature, normalizations, weight, window, stride):
    return torch.empty_like(weight), weight.new_empty(weight.shape[0])


def _remember(ctx, inputs, output) -> None:
    tokens_NM3, cell_of_location, place_of_feature, normalizations, weight, _, ctx.window, ctx.stride = inputs
    ctx.save_for_backward(tokens_NM3, cell_of_location, place_of_feature, normalizations, weight)


def _backward(ctx, d_output):
    d_weight, d_bias = token_conv_backward(d_output, *ctx.saved_tensors, ctx.window, ctx.stride)
    return None, None, None, None, d_weight, d_bias, None, None


token_conv.register_autograd(_backward, _remember)
