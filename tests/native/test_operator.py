"""Operators of our own: the same directly, as PyTorch's operator and compiled, gradients too."""

import runpy

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from engram.native.operator import Operator

calls = []


@Operator
def scaled_for_a_test(x: Tensor, scale: float) -> Tensor:
    calls.append(type(x))
    return x * scale


@scaled_for_a_test.register_fake
def _(x, scale):
    return torch.empty_like(x)


def _remember(ctx, inputs, output) -> None:
    _, ctx.scale = inputs


def _backward(ctx, d_y):
    return d_y * ctx.scale + 1, None  # not the true gradient, so that it is known from autograd's own


scaled_for_a_test.register_autograd(_backward, _remember)


def compiled(x: Tensor, scale: float) -> Tensor:
    return torch.compile(lambda x: scaled_for_a_test(x, scale) + 0, backend="aot_eager", fullgraph=True)(x)


@pytest.mark.parametrize("way", [scaled_for_a_test, scaled_for_a_test.definition, compiled])
def test_every_way_to_call_it_gives_the_same_and_has_its_gradient(way):
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = way(x, 3.0)
    y.sum().backward()
    assert y.tolist() == [3, 6]
    assert x.grad.tolist() == [4, 4]


def test_fake_tensors_never_reach_the_function():
    calls.clear()
    compiled(torch.ones(3, requires_grad=True), 2.0)
    assert calls == [Tensor]  # once, when it ran


def test_meta_tensors_never_reach_the_function():
    calls.clear()
    with FakeTensorMode() as mode:
        y = scaled_for_a_test(mode.from_tensor(torch.ones(3)), 2.0)
    assert y.shape == (3,)
    assert calls == []


def test_parameters_and_other_kinds_of_tensors_are_taken_too():
    x = torch.nn.Parameter(torch.ones(2))
    scaled_for_a_test(x, 3.0).sum().backward()
    assert x.grad.tolist() == [4, 4]


def test_the_operator_passes_opcheck():
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(scaled_for_a_test.definition, (torch.ones(3, requires_grad=True), 2.0), test_utils=checks)


def test_a_changed_operator_has_a_different_name(tmp_path):
    """PyTorch keeps compiled code on disk, by the names of operators: it must not find that of an older version."""
    found = []
    for version, arguments in enumerate(("x: Tensor", "x: Tensor, more: float")):
        path = tmp_path / f"version_{version}.py"
        path.write_text(
            "from torch import Tensor\n"
            "from engram.native.operator import Operator\n\n"
            f"@Operator\ndef changed_for_a_test({arguments}) -> Tensor:\n"
            "    return x + 1\n"
        )
        found.append(runpy.run_path(str(path))["changed_for_a_test"])
    names = [str(operator._operator) for operator in found]
    assert names[0] != names[1]
    assert all("changed_for_a_test" in name for name in names)
