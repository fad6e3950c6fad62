"""Tokens drawn into a box: each at its cell, none erased by padding, the same eager and compiled."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from engram.agent.encoders.box import (
    BoxEncoder,
    BoxNormaliser,
    TokenConv2d,
    TokensToBox,
    scatter_last,
)
from engram.agent.encoders.tokens import is_last
from engram.agent.layers import conv_shape
from engram.env.parts import box
from engram.env.spec import EnvSpec, Feature

EMPTY = (0xFF, 0xFF, 0xFF)


def token_spec(window=(11, 11), ids=(0, 1, 5, 9)):
    features = tuple(Feature(i, f"feature_{i}", 10.0 * (i + 1)) for i in ids)
    return EnvSpec(
        "box", box((8, 3), np.dtype("uint8")), spaces.Discrete(2), "tokens", window=window, features=features
    )


def random_tokens(rows=6, count=40, window=(11, 11)):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 256, (rows, count, 3), generator=generator)
    row, column = (torch.randint(0, side + 1, (rows, count), generator=generator) for side in window)
    tokens[..., 0] = torch.where(torch.rand(rows, count, generator=generator) < 0.2, 0xFF, row * 16 + column)
    tokens[..., 1] = torch.randint(0, 11, (rows, count), generator=generator)
    return tokens.to(torch.uint8)


def box_by_hand(tokens, spec):
    """The expected box, drawn one token at a time."""
    places = {feature.id: (place, feature.normalization) for place, feature in enumerate(spec.features)}
    height, width = spec.window
    expected = torch.zeros(len(tokens), len(places), height, width)
    for row, line in enumerate(tokens.tolist()):
        for location, feature, value in line:
            y, x = (height // 2, width // 2) if location == 0xFE else divmod(location, 16)
            if location != 0xFF and feature in places and y < height and x < width:
                layer, normalization = places[feature]
                expected[row, layer, y, x] = value / normalization
    return expected


def draw(*tokens, **spec):
    return TokensToBox(token_spec(**spec))(torch.tensor([tokens], dtype=torch.uint8))[0]


def test_a_token_at_the_first_feature_and_cell_survives_padding():
    result = draw((0x00, 0, 20), EMPTY, EMPTY)
    assert result[0, 0, 0] == 2.0
    assert result.count_nonzero() == 1


def test_small_values_are_not_truncated():
    assert draw((0x34, 9, 1))[3, 3, 4] == pytest.approx(0.01)


def test_global_tokens_are_in_the_centre():
    assert draw((0xFE, 1, 20))[1, 5, 5] == 1.0
    assert draw((0xFE, 1, 20), window=(5, 9))[1, 2, 4] == 1.0


def test_the_last_token_of_a_cell_and_feature_counts():
    assert draw((0x11, 0, 30), (0x22, 0, 5), (0x11, 0, 20))[0, 1, 1] == 2.0
    assert draw((0x11, 0, 30), (0x11, 0, 0), EMPTY)[0, 1, 1] == 0.0


@pytest.mark.parametrize("window", [(11, 11), (5, 7), (3, 15)])
def test_the_box_equals_one_made_by_hand(window):
    tokens, spec = random_tokens(window=window), token_spec(window)
    assert torch.equal(TokensToBox(spec)(tokens), box_by_hand(tokens, spec))


def test_dividing_after_scattering_gives_the_same_box_to_the_last_bit():
    tokens, spec = random_tokens(), token_spec()
    raw = TokensToBox(spec, normalise=False)(tokens)
    assert torch.equal(BoxNormaliser(spec)(raw), TokensToBox(spec)(tokens))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60))
def test_only_the_last_element_of_each_index_is_marked(places):
    marked = is_last(torch.tensor(places), 6).tolist()
    assert marked == [place not in places[i + 1 :] for i, place in enumerate(places)]


def test_eager_and_order_independent_scatter_agree():
    places = torch.randint(0, 1000, (200_000,), generator=torch.Generator().manual_seed(0))
    values = torch.arange(200_000.0)
    winners = torch.where(is_last(places, 1001), places, 1000)
    expected = torch.zeros(1001).scatter_(0, winners, values)
    assert torch.equal(scatter_last(places, values, 1001)[:-1], expected[:-1])


def test_a_row_does_not_depend_on_the_others():
    tokens, draw_all = random_tokens(), TokensToBox(token_spec())
    assert torch.equal(draw_all(tokens)[2:3], draw_all(tokens[2:3]))


@pytest.mark.parametrize(
    ("side", "kernel", "stride"), [(15, 5, 3), (11, 5, 3), (9, 4, 2), (7, 3, 1), (5, 3, 1), (3, 1, 1), (1, 1, 1)]
)
def test_convolutions_shrink_for_small_windows(side, kernel, stride):
    first, second = conv_shape((side, 11))
    assert (first.kernel, first.stride) == ((kernel, 5), (stride, 3))
    assert second.kernel[0] == min(3, first.output[0])


@pytest.mark.parametrize("window", [(11, 11), (15, 13), (5, 5), (3, 11), (1, 1)])
def test_every_window_can_be_encoded(window):
    encoder = BoxEncoder(token_spec(window), output_size=32)
    assert encoder(random_tokens(window=window)).shape == (6, 32)


def test_the_layers_are_those_of_the_contract():
    shapes = {name: tuple(p.shape) for name, p in BoxEncoder(token_spec()).named_parameters() if "weight" in name}
    assert shapes == {
        "conv1.conv.weight": (64, 4, 5, 5),
        "conv2.weight": (64, 64, 3, 3),
        "linear1.weight": (128, 64),
        "linear2.weight": (128, 128),
    }


def test_a_token_convolution_equals_that_of_the_box():
    spec, tokens = token_spec(), random_tokens()
    fused = TokenConv2d(spec, 8, (5, 5), (3, 3))
    torch.testing.assert_close(fused(tokens), fused.conv(box_by_hand(tokens, spec)))


def test_double_precision_and_autocast_work():
    tokens, encoder = random_tokens(), BoxEncoder(token_spec())
    single = encoder(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(encoder(tokens).float(), single, atol=0.1, rtol=0.1)
    torch.testing.assert_close(encoder.double()(tokens).float(), single, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_it_compiles_whole_and_gives_the_same_numbers():
    tokens, encoder = random_tokens(), BoxEncoder(token_spec())
    compiled = torch.compile(encoder, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(tokens), encoder(tokens), atol=1e-5, rtol=1e-4)
