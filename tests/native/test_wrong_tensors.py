"""Tensors of a wrong shape or dtype raise before they reach the kernels, which would access memory out of bounds."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from engram.agent.layers import two_layers
from engram.native import layers, library, lstm, ppo, token_conv

if library.kernels() is None:
    pytest.skip("no compiler, or kernels switched off", allow_module_level=True)

STEPS, ROWS, INPUTS, HIDDEN, OUTPUTS, LAYERS = 3, 4, 5, 64, 2, 2
SIZES = token_conv.ConvGeometry((5, 5), (3, 3), (1, 1))


class Call(NamedTuple):
    """A kernel with valid tensors; and which sizes and dtypes of them are free."""

    run: Callable[..., Any]
    tensors: dict[str, Tensor]
    free: frozenset[tuple[str, int]] = frozenset()
    of_any_dtype: frozenset[str] = frozenset()


def tensors(**shapes: tuple[int, ...]) -> dict[str, Tensor]:
    return {name: torch.rand(shape) for name, shape in shapes.items()}


SEQUENCE, WEIGHT = (STEPS, ROWS, HIDDEN), (HIDDEN, INPUTS)
STARTS = {"starts": torch.zeros(STEPS, ROWS, dtype=torch.bool)}
WEIGHTS = tensors(w_ih=(4 * HIDDEN, INPUTS), w_hh=(4 * HIDDEN, HIDDEN), b_ih=(4 * HIDDEN,), b_hh=(4 * HIDDEN,))
DEEPER = tensors(v_ih=(4 * HIDDEN, HIDDEN), v_hh=(4 * HIDDEN, HIDDEN), c_ih=(4 * HIDDEN,), c_hh=(4 * HIDDEN,))
LSTM = tensors(x=(STEPS, ROWS, INPUTS), h0=(ROWS, HIDDEN), c0=(ROWS, HIDDEN)) | STARTS
GRADIENTS = tensors(d_outputs=SEQUENCE, d_cells=SEQUENCE)
KEPT = tensors(outputs=SEQUENCE, cells=SEQUENCE, gates=(STEPS, ROWS, 4 * HIDDEN))
PAIR = tensors(w_KI=WEIGHT, b_K=(HIDDEN,), w_OK=(OUTPUTS, HIDDEN), b_O=(OUTPUTS,))
TOKENS = {
    "tokens": torch.zeros(ROWS, 7, 3, dtype=torch.uint8),
    "cells": torch.full((256,), -1),
    "places": torch.full((256,), -1),
    **tensors(normalizations=(6,), weight=(8, 6, 3, 3)),
}


def advance(x: Tensor, memory: Tensor, starts: Tensor, *weights: Tensor) -> object:
    return lstm.advance(x, memory, starts, [weights[:4], weights[4:]])


def convolve(tokens: Tensor, *rest: Tensor) -> object:
    *tables, weight, bias = rest
    return token_conv.forward(tokens, tuple(tables), weight, bias, SIZES)


def convolve_backward(tokens: Tensor, *rest: Tensor) -> object:
    *tables, weight, d_output = rest
    return token_conv.backward(d_output, tokens, tuple(tables), weight, SIZES)


def loss(*inputs: Tensor) -> object:
    return ppo.loss_and_gradient(*inputs, **dict.fromkeys(ppo.OPTIONS, 1.0))


def two(activation: str, *, keep: bool) -> Callable[..., Any]:
    return lambda *tensors: layers.forward(*tensors, activation, keep_hidden=keep)


ANY = frozenset({"starts"})
CALLS = {
    "an LSTM's layer": Call(lstm.forward, LSTM | WEIGHTS, of_any_dtype=ANY),
    "an LSTM's layers": Call(
        advance,
        {"x": LSTM["x"], **tensors(memory=(ROWS, LAYERS, 2 * HIDDEN)), **STARTS, **WEIGHTS, **DEEPER},
        of_any_dtype=ANY,
    ),
    "an LSTM's gradient": Call(
        lstm.backward,
        {**GRADIENTS, **LSTM, "w_ih": WEIGHTS["w_ih"], "w_hh": WEIGHTS["w_hh"], **KEPT},
        of_any_dtype=ANY,
    ),
    "two layers": Call(two("tanh", keep=False), tensors(x=(ROWS, INPUTS)) | PAIR, frozenset({("x", 0)})),
    "two layers, hidden kept": Call(two("relu", keep=True), tensors(x=(ROWS, INPUTS)) | PAIR, frozenset({("x", 0)})),
    "two layers' gradient": Call(
        lambda *tensors: layers.backward(*tensors, "tanh"),
        tensors(
            d_y=(ROWS, OUTPUTS), x=(ROWS, INPUTS), w_KI=WEIGHT, w_OK=(OUTPUTS, HIDDEN), hidden=(ROWS, HIDDEN)
        ),
    ),
    "token convolution": Call(convolve, TOKENS | tensors(bias=(8,)), frozenset({("tokens", 0), ("tokens", 1)})),
    "token convolution's gradient": Call(
        convolve_backward, TOKENS | tensors(d_output=(ROWS, 8, 3, 3)), frozenset({("tokens", 1)})
    ),
    "PPO loss": Call(
        loss, tensors(**dict.fromkeys(ppo.INPUTS, (ROWS, STEPS))), of_any_dtype=frozenset(ppo.INPUTS)
    ),
}  # fmt: skip


def invalid_versions(name: str, tensor: Tensor, call: Call) -> list[Tensor]:
    """The tensor one element larger and smaller a side, with an extra dimension, of other dtypes and devices."""
    found = [torch.zeros_like(tensor, device="meta")]
    for side in range(tensor.dim()):
        if (name, side) not in call.free:
            found += [tensor.repeat_interleave(2, side).narrow(side, 0, tensor.shape[side] + 1)]
            found += [tensor.narrow(side, 0, tensor.shape[side] - 1)]
    if (name, -1) not in call.free:
        found += [tensor.unsqueeze(0).repeat(2, *(1 for _ in tensor.shape))]
    if name not in call.of_any_dtype:
        found += [tensor.double(), tensor.to(torch.int32)]
    return found


def raises(call: Call, tensors: dict[str, Tensor]) -> bool:
    try:
        call.run(*tensors.values())
    except (ValueError, RuntimeError):
        return True
    return False


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_wrong_shapes_and_dtypes_are_errors(instruction_set: str, call: Call) -> None:
    assert not raises(call, call.tensors)
    for name, tensor in call.tensors.items():
        for other in invalid_versions(name, tensor, call):
            assert raises(call, call.tensors | {name: other}), (name, other.shape, other.dtype, other.device)


def test_the_error_names_the_tensor_and_both_shapes() -> None:
    call = CALLS["an LSTM's layer"]
    with pytest.raises(ValueError, match=r"LSTM: w_ih must be \[256, 6\] .*, got \[256, 5\] of torch.float32 on cpu"):
        call.run(torch.rand(STEPS, ROWS, INPUTS + 1), *list(call.tensors.values())[1:])


@pytest.mark.parametrize(
    ("hidden", "outputs"), [(65, 2), (64, layers.MAX_OUTPUTS + 1)], ids=["part of a panel", "too many outputs"]
)
def test_unsupported_layer_sizes_are_an_error(instruction_set: str, hidden: int, outputs: int) -> None:
    sizes = tensors(x=(ROWS, INPUTS), w_KI=(hidden, INPUTS), b_K=(hidden,), w_OK=(outputs, hidden), b_O=(outputs,))
    with pytest.raises(ValueError, match="expected a multiple of 64 units"):
        layers.forward(*sizes.values(), "relu", keep_hidden=False)


@pytest.mark.parametrize(
    "sizes",
    [((17, 5), (3, 3), (1, 1)), ((5, 5), (6, 3), (1, 1)), ((5, 5), (3, 2), (1, 1))],
    ids=["a wide window", "a kernel beyond the window", "another kernel"],
)
def test_an_impossible_convolution_is_an_error(sizes) -> None:
    tokens, *tables, weight = TOKENS.values()
    weight = weight if sizes[1] == (3, 2) else torch.rand(8, 6, *sizes[1])
    with pytest.raises(ValueError, match="token convolution"):
        token_conv.forward(tokens, tuple(tables), weight, torch.rand(8), token_conv.ConvGeometry(*sizes))


def test_gradients_may_have_any_memory_layout() -> None:
    tokens, cells, places, *rest = TOKENS.values()
    tokens, cells, places = torch.ones_like(tokens), torch.zeros_like(cells), torch.zeros_like(places)
    d_output = torch.rand(ROWS, 8, 3, 3)
    expected, _ = convolve_backward(tokens, cells, places, *rest, d_output)
    rest[-1] = rest[-1].to(memory_format=torch.channels_last)
    found, _ = convolve_backward(tokens, cells, places, *rest, d_output)
    assert expected.any()
    assert torch.equal(found, expected)


def test_results_are_float32_whatever_the_default_dtype() -> None:
    call = CALLS["PPO loss"]
    expected = call.run(*call.tensors.values())
    torch.set_default_dtype(torch.float64)
    try:
        found = call.run(*call.tensors.values())
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("grad", [False, True])
def test_layers_without_bias_and_3d_inputs_fall_back_to_pytorch(grad: bool) -> None:
    torch.manual_seed(0)
    for bias, shape in ((False, (ROWS, INPUTS)), (True, (STEPS, ROWS, INPUTS))):
        hidden, output, x = nn.Linear(INPUTS, HIDDEN, bias=bias), nn.Linear(HIDDEN, OUTPUTS), torch.rand(shape)
        with torch.set_grad_enabled(grad):
            torch.testing.assert_close(two_layers(x, hidden, output, "relu"), output(hidden(x).relu()))


@pytest.mark.parametrize("grad", [False, True])
def test_layers_of_the_wrong_input_size_are_an_error(grad: bool) -> None:
    hidden, output = nn.Linear(INPUTS, HIDDEN), nn.Linear(HIDDEN, OUTPUTS)
    for width in (INPUTS - 1, INPUTS + 1):
        with torch.set_grad_enabled(grad), pytest.raises((ValueError, RuntimeError)):
            two_layers(torch.rand(ROWS, width), hidden, output, "tanh")
