"""Two layers as one, in parts: what they are one after the other, and gradients."""

import pytest
import torch
from torch import nn

from engram.agent.native.library import kernels, without_kernels
from engram.agent.two_layers import ACTIVATIONS, ROWS_AT_ONCE, two_layers, two_layers_op

needs_kernels = pytest.mark.skipif(kernels() is None, reason="no native kernels here")
SIZES = [0, 1, 7, ROWS_AT_ONCE, ROWS_AT_ONCE + 1, 2 * ROWS_AT_ONCE + 30]


def layers(outputs=1, bias=True):
    torch.manual_seed(0)
    return nn.Linear(12, 40), nn.Linear(40, outputs, bias=bias)


def gradients(x, hidden, output, way):
    for parameter in (*hidden.parameters(), *output.parameters()):
        parameter.grad = None
    x = x.clone().requires_grad_()
    y = way(x)
    (y * torch.arange(1, y.numel() + 1, dtype=y.dtype).view_as(y) / max(1, y.numel())).sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in (*hidden.parameters(), *output.parameters()))]


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize(("outputs", "bias"), [(1, True), (3, True), (3, False)])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("native", [True, False])
def test_values_and_gradients_are_those_of_the_layers_one_by_one(rows, outputs, bias, activation, native):
    hidden, output = layers(outputs, bias)
    x = torch.randn(rows, 12)

    def ours(x):
        return two_layers(x, hidden, output, activation)

    if native:
        found = gradients(x, hidden, output, ours)
    else:
        with without_kernels():
            found = gradients(x, hidden, output, ours)
    hidden, output = hidden.double(), output.double()
    expected = gradients(x.double(), hidden, output, lambda x: output(getattr(torch, activation)(hidden(x))))
    for got, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=2e-5 * max(1, rows) ** 0.5)


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_acting_gives_what_learning_gives(rows, activation):
    hidden, output = layers()
    x = torch.randn(rows, 12)
    with torch.no_grad():
        acting = two_layers(x, hidden, output, activation)
    torch.testing.assert_close(acting, two_layers(x, hidden, output, activation), rtol=0, atol=1e-6)


@needs_kernels
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_the_operator_keeps_its_promises(activation, bias):
    hidden, output = layers(bias=bias)
    arguments = (hidden.weight, hidden.bias, output.weight, output.bias, activation)
    torch.library.opcheck(two_layers_op.definition, (torch.randn(6, 12, requires_grad=True), *arguments))


def test_autocast_is_heeded():
    hidden, output = layers()
    with torch.autocast("cpu", torch.bfloat16):
        assert two_layers(torch.randn(5, 12), hidden, output, "relu").dtype == torch.bfloat16
