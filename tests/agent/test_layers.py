"""Fast layers equal those of PyTorch, with gradients, and give a row the same bits in any batch."""

import pytest
import torch
from torch import nn

from engram.agent.heads import BigBilinearScores, BilinearActor, Critic
from engram.agent.layers import ACTIVATIONS, Conv2d, two_layers
from engram.native import layers as native
from engram.native.layers import two_layers_op
from engram.native.library import kernels, without_kernels

needs_kernels = pytest.mark.skipif(kernels() is None, reason="no native kernels here")
ROWS = [0, 1, 7, 132, 133, 700]
SIZES = [(12, 64, 1, True), (128, 192, 3, False), (70, 128, 16, True)]  # inputs, hidden, outputs, bias


def layers(inputs=12, hidden=64, outputs=1, bias=True):
    torch.manual_seed(0)
    return nn.Linear(inputs, hidden), nn.Linear(hidden, outputs, bias=bias)


def gradients(x, hidden, output, way):
    for parameter in (*hidden.parameters(), *output.parameters()):
        parameter.grad = None
    x = x.clone().requires_grad_()
    y = way(x)
    (y * torch.arange(1, y.numel() + 1, dtype=y.dtype).view_as(y) / max(1, y.numel())).sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in (*hidden.parameters(), *output.parameters()))]


def assert_right(x, hidden, output, activation, way):
    found = gradients(x, hidden, output, way)
    hidden, output = hidden.double(), output.double()
    expected = gradients(x.double(), hidden, output, lambda x: output(getattr(torch, activation)(hidden(x))))
    for got, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=2e-5 * max(1, len(x)) ** 0.5)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("sizes", [*SIZES, (12, 40, 1, True)], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("native", [True, False])
def test_fused_layers_equal_separate_layers_in_values_and_gradients(rows, sizes, activation, native):
    hidden, output = layers(*sizes)
    x = torch.randn(rows, sizes[0])

    def ours(x):
        return two_layers(x, hidden, output, activation)

    if native:
        assert_right(x, hidden, output, activation, ours)
    else:
        with without_kernels():
            assert_right(x, hidden, output, activation, ours)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_kernels_of_every_instruction_set_are_right(instruction_set, threads, rows, sizes, activation):
    hidden, output = layers(*sizes)
    x, before = torch.randn(rows, sizes[0]), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_right(
            x,
            hidden,
            output,
            activation,
            lambda x: two_layers_op(x, hidden.weight, hidden.bias, output.weight, output.bias, activation)[0],
        )
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_row_has_the_same_bits_in_any_batch_in_acting_and_learning(instruction_set, sizes, activation):
    hidden, output = layers(*sizes)
    x, rest = torch.randn(140, sizes[0]), (hidden.weight, hidden.bias, output.weight, output.bias, activation)
    learning = two_layers_op(x, *rest)[0].detach()
    for rows in (slice(None), slice(0, 1), slice(3, 10), slice(131, 133), slice(5, 140)):
        assert torch.equal(native.forward(x[rows], *rest, keep_hidden=False)[0], learning[rows])


def test_inputs_may_be_strided(instruction_set):
    hidden, output = layers()
    x = torch.randn(30, 24)
    arguments = (hidden.weight, hidden.bias, output.weight, output.bias, "relu")
    for view in (x[:, :12], x[:, ::2], x[::2, 3:15], torch.randn(12, 30).t()):
        assert torch.equal(two_layers_op(view, *arguments)[0], two_layers_op(view.contiguous(), *arguments)[0])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_stays_nan(instruction_set, activation):
    hidden, output = layers()
    x = torch.randn(9, 12)
    x[4, 3] = torch.nan
    y, _ = two_layers_op(x, hidden.weight, hidden.bias, output.weight, output.bias, activation)
    assert y.isnan().squeeze(1).tolist() == [row == 4 for row in range(9)]


@needs_kernels
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_the_two_layers_operator_passes_opcheck(activation, bias):
    hidden, output = layers(bias=bias)
    arguments = (hidden.weight, hidden.bias, output.weight, output.bias, activation)
    torch.library.opcheck(two_layers_op.definition, (torch.randn(6, 12, requires_grad=True), *arguments))


def test_the_kernels_support_the_sizes_of_the_heads(instruction_set):
    heads = (Critic(128).value, BilinearActor(128, 9).scores.query, BigBilinearScores().score)
    for output in heads:
        assert native.supports(output.in_features, output.out_features) == (instruction_set != "plain")
    assert not native.supports(1000, 1)
    assert not native.supports(1024, native.MAX_OUTPUTS + 1)


def test_autocast_is_respected():
    hidden, output = layers()
    with torch.autocast("cpu", torch.bfloat16):
        assert two_layers(torch.randn(5, 12), hidden, output, "relu").dtype == torch.bfloat16


@pytest.mark.parametrize("size", [(3, 3), (5, 4)], ids=["one cell", "several cells"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_convolution_as_large_as_its_input_equals_that_of_torch(size, layout) -> None:
    torch.manual_seed(0)
    ours, theirs = Conv2d(6, 7, (3, 3)), nn.Conv2d(6, 7, (3, 3))
    theirs.load_state_dict(ours.state_dict())
    results = []
    for layer in (ours, theirs):
        box = torch.linspace(-1, 1, 4 * 6 * size[0] * size[1]).view(4, 6, *size).contiguous(memory_format=layout)
        box.requires_grad_()
        output = layer(box)
        output.square().sum().backward()
        results.append([output, box.grad, *(parameter.grad for parameter in layer.parameters())])
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-4)
