"""tanh by the kernels: PyTorch's to rounding, the same bits in any company, and gradients."""

import pytest
import torch

from engram.agent.recurrent.tanh import tanh, tanh_op
from engram.native.library import choose, kernels, kinds, loaded, without_kernels

needs_kernels = pytest.mark.skipif(kernels() is None, reason="no native kernels here")


@pytest.fixture(params=["as it is", "without kernels"])
def way(request):
    if request.param == "as it is":
        yield
        return
    with without_kernels():
        yield


@pytest.mark.parametrize("shape", [(), (0,), (1,), (17,), (3, 5), (40, 1024)])
@pytest.mark.usefixtures("way")
def test_values_and_gradients_are_those_of_pytorch(shape):
    x = (torch.randn(shape) * 3).requires_grad_()
    expected = x.detach().double().requires_grad_()
    weights = torch.randn(shape)
    (tanh(x) * weights).sum().backward()
    (expected.tanh() * weights.double()).sum().backward()
    torch.testing.assert_close(tanh(x).double(), expected.tanh(), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(x.grad.double(), expected.grad, rtol=1e-5, atol=3e-6)  # of 1 - y², near 1


@needs_kernels
@pytest.mark.parametrize("kind", kinds() or ["none"])
def test_every_kind_of_processor_agrees_from_end_to_end(kind):
    x = torch.cat([torch.linspace(-100, 100, 4001), torch.linspace(-1e-3, 1e-3, 2001)])
    try:
        choose(loaded(), kind)
        torch.testing.assert_close(tanh(x).double(), x.double().tanh(), rtol=1e-6, atol=0)
    finally:
        choose(loaded())


@pytest.mark.usefixtures("way")
def test_infinity_and_nan_are_what_they_should_be():
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0] * 5)
    torch.testing.assert_close(tanh(x), x.tanh(), equal_nan=True)


@needs_kernels
@pytest.mark.parametrize("threads", [1, 2])
def test_a_number_has_the_same_bits_wherever_it_stands(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x = torch.randn(50_003)
        whole = tanh(x)
        for first, last in ((0, 1), (5, 12), (49_990, 50_003), (16_383, 40_001)):
            assert torch.equal(tanh(x[first:last]), whole[first:last])
        assert torch.equal(tanh(x.requires_grad_()), whole)
    finally:
        torch.set_num_threads(before)


@needs_kernels
def test_the_operator_keeps_its_promises():
    torch.library.opcheck(tanh_op.definition, (torch.randn(6, 5, requires_grad=True),))
    torch.library.opcheck(tanh_op.definition, (torch.randn(6, 5).t(),))


def test_other_numbers_than_float32_are_left_to_pytorch():
    for dtype in (torch.float64, torch.bfloat16):
        x = torch.randn(9).to(dtype)
        assert torch.equal(tanh(x), x.tanh())
