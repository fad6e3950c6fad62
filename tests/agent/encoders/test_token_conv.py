"""The token convolution equals the convolution of the box, with and without kernels, and is bitwise stable per row."""

from collections.abc import Iterator
from contextlib import nullcontext
from copy import deepcopy

import pytest
import torch
from support.playing import random_observations, token_spec
from torch import Tensor

from engram.agent.encoders.box import TokenConv2d
from engram.agent.layers import conv_shape
from engram.native import library

MODES = [*library.instruction_sets(), "pure"]


@pytest.fixture(params=MODES, autouse=True)
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    """The kernels for each supported instruction set, and PyTorch without them."""
    kernels = library.kernels()
    if kernels is not None and request.param != "pure":
        library.select_instruction_set(kernels, request.param)
    with library.without_kernels() if request.param == "pure" else nullcontext():
        yield request.param
    if kernels is not None:
        library.select_instruction_set(kernels)


def convolution(window: int = 11, features: int = 6, channels: int = 20) -> TokenConv2d:
    torch.manual_seed(0)
    first, _ = conv_shape((window, window))
    conv = TokenConv2d(token_spec(window=window, features=features), channels, first.kernel, first.stride)
    torch.nn.init.normal_(conv.conv.bias)
    return conv


def observations(window: int, rows: int = 40, tokens: int = 30, features: int = 6) -> Tensor:
    """With padding at the end, global tokens, unknown features, and several tokens of one cell and feature."""
    generator = torch.Generator().manual_seed(1)
    seen = random_observations(token_spec(window, tokens, features), (rows,), generator)
    seen[::3, 5] = seen[::3, 2]
    seen[::3, 5, 2] += 1
    seen[::4, 3, 1] = 200
    seen[::5, 4, 0] = 0xEE  # outside the window
    return seen


def box_convolution(conv: TokenConv2d, tokens: Tensor) -> Tensor:
    return conv.conv(conv.box(tokens))


@pytest.mark.parametrize("window", [11, 9, 5, 3, 1])
@pytest.mark.parametrize("channels", [1, 13, 64])
def test_values_and_gradients_equal_those_of_the_box_convolution(window: int, channels: int) -> None:
    conv, tokens = convolution(window, channels=channels), observations(window)
    precise = deepcopy(conv).double()
    results = []
    for run, parameters in ((conv, conv.parameters()), (precise, precise.parameters())):  # the second one draws the box
        output = run(tokens)
        loss = (output * torch.linspace(0.5, 1.5, output.numel()).view(output.shape)).sum()
        results.append([output, *torch.autograd.grad(loss, list(parameters))])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)


def test_the_last_token_of_a_cell_and_feature_counts() -> None:
    conv = convolution()
    several = torch.tensor([[[0x33, 0, 9], [0x33, 1, 5], [0x33, 0, 4]], [[0x33, 1, 5], [0x33, 0, 4], [0xFF] * 3]])
    first, second = conv(several.to(torch.uint8))
    torch.testing.assert_close(first, second)
    assert (first != conv.conv.bias[:, None, None]).any()


def test_rows_without_tokens_are_the_bias() -> None:
    conv = convolution()
    output = conv(torch.full((3, 8, 3), 0xFF, dtype=torch.uint8))
    assert torch.equal(output, conv.conv.bias[None, :, None, None].expand_as(output))
    assert conv(torch.zeros(0, 8, 3, dtype=torch.uint8)).shape == (0, 20, 3, 3)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_has_the_same_bits_in_any_batch(threads: int) -> None:
    conv, tokens = convolution(), observations(11, rows=150)
    whole = conv(tokens)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.no_grad():
            for part in (slice(0, 1), slice(1, 4), slice(4, 150), slice(0, 150, 7)):
                assert torch.equal(conv(tokens[part]), whole[part])
            padded = torch.cat([tokens, torch.full((150, 16, 3), 0xFF, dtype=torch.uint8)], dim=1)
            assert torch.equal(conv(padded), whole)
    finally:
        torch.set_num_threads(before)


def test_tokens_may_be_strided() -> None:
    conv, tokens = convolution(), observations(11)
    apart = torch.stack([tokens, tokens], dim=1).flatten(1, 2)[:, : tokens.shape[1]]
    assert torch.equal(conv(apart), conv(tokens))
    assert torch.equal(conv(tokens.permute(2, 0, 1).contiguous().permute(1, 2, 0)), conv(tokens))


def test_learning_and_acting_have_the_same_bits() -> None:
    conv, tokens = convolution(), observations(11)
    with torch.no_grad():
        acted = conv(tokens)
    assert torch.equal(conv(tokens), acted)


def test_it_compiles_to_one_graph() -> None:
    conv, tokens = convolution(), observations(11)
    torch.compiler.reset()
    run = torch.compile(conv, fullgraph=True, backend="aot_eager")
    output = run(tokens)
    torch.testing.assert_close(output, box_convolution(conv, tokens), rtol=1e-4, atol=1e-5)
    output.sum().backward()
    assert conv.conv.weight.grad is not None
    torch.compiler.reset()
