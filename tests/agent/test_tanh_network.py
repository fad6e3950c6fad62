"""Two layers with tanh between them, in parts: what they are one after the other, and gradients."""

import pytest
import torch
from torch import nn

from engram.agent.native.library import kernels, without_kernels
from engram.agent.tanh_network import ROWS_AT_ONCE, tanh_network, tanh_network_op

needs_kernels = pytest.mark.skipif(kernels() is None, reason="no native kernels here")
SIZES = [0, 1, 7, ROWS_AT_ONCE, ROWS_AT_ONCE + 1, 2 * ROWS_AT_ONCE + 30]


def layers(outputs=1):
    torch.manual_seed(0)
    return nn.Linear(12, 40), nn.Linear(40, outputs)


def gradients(x, hidden, output, way):
    for parameter in (*hidden.parameters(), *output.parameters()):
        parameter.grad = None
    x = x.clone().requires_grad_()
    y = way(x, hidden, output)
    (y * torch.arange(1, y.numel() + 1, dtype=y.dtype).view_as(y) / max(1, y.numel())).sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in (*hidden.parameters(), *output.parameters()))]


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("native", [True, False])
def test_values_and_gradients_are_those_of_the_layers_one_by_one(rows, outputs, native):
    hidden, output = layers(outputs)
    x = torch.randn(rows, 12)
    if native:
        found = gradients(x, hidden, output, tanh_network)
    else:
        with without_kernels():
            found = gradients(x, hidden, output, tanh_network)
    hidden, output = hidden.double(), output.double()
    expected = gradients(x.double(), hidden, output, lambda x, hidden, output: output(hidden(x).tanh()))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=2e-5 * max(1, rows) ** 0.5)


@pytest.mark.parametrize("rows", SIZES)
def test_acting_gives_what_learning_gives(rows):
    hidden, output = layers()
    x = torch.randn(rows, 12)
    with torch.no_grad():
        acting = tanh_network(x, hidden, output)
    torch.testing.assert_close(acting, tanh_network(x, hidden, output), rtol=0, atol=0)


@needs_kernels
def test_the_operator_keeps_its_promises():
    hidden, output = layers()
    arguments = (hidden.weight, hidden.bias, output.weight, output.bias)
    torch.library.opcheck(tanh_network_op, (torch.randn(6, 12, requires_grad=True), *arguments))


def test_autocast_is_heeded():
    hidden, output = layers()
    with torch.autocast("cpu", torch.bfloat16):
        assert tanh_network(torch.randn(5, 12), hidden, output).dtype == torch.bfloat16
