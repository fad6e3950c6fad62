"""Token bytes are decoded to cells, features and values, and no byte is out of range."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from engram.agent.encoders.tokens import StripPadding, TokenDecoder
from engram.env.parts import box
from engram.env.spec import EnvSpec, Feature


def token_spec(*features: Feature, window=(5, 7)):
    return EnvSpec(
        "tokens", box((4, 3), np.dtype("uint8")), spaces.Discrete(2), "tokens", window=window, features=features
    )


SPEC = token_spec(Feature(3, "wall", 1.0), Feature(60, "energy", 200.0))


def decode(*tokens, spec=SPEC, **options):
    return TokenDecoder(spec, **options)(torch.tensor([tokens], dtype=torch.uint8))


def test_the_row_is_in_the_high_nibble_and_the_column_in_the_low_one():
    tokens = decode((0x00, 3, 1), (0x46, 3, 1), (0x12, 3, 1))
    assert tokens.cells.tolist() == [[0, 4 * 7 + 6, 1 * 7 + 2]]
    assert tokens.valid.all()


def test_feature_ids_become_indices_without_gaps():
    assert decode((0, 3, 1), (0, 60, 1)).features.tolist() == [[0, 1]]


def test_a_global_token_is_on_the_agents_cell():
    tokens = decode((0xFE, 3, 1), (0x23, 3, 1))
    assert tokens.cells[0, 0] == tokens.cells[0, 1]
    assert tokens.valid.all()


def test_values_are_divided_as_floats():
    tokens = decode((0, 60, 50), (0, 3, 200))
    torch.testing.assert_close(tokens.values, torch.tensor([[0.25, 200.0]]))
    assert decode((0, 60, 50), normalise=False).values.tolist() == [[50.0]]


def test_padding_unknown_features_and_locations_outside_the_window_are_invalid():
    tokens = decode((0xFF, 0xFF, 0xFF), (0xFF, 3, 9), (0x00, 4, 1), (0x50, 3, 1), (0x07, 3, 1), (0x00, 3, 1))
    assert tokens.valid.tolist() == [[False, False, False, False, False, True]]


def test_no_byte_is_out_of_range():
    every = torch.arange(256, dtype=torch.uint8)
    for column in range(3):
        tokens = torch.zeros(256, 1, 3, dtype=torch.uint8)
        tokens[:, 0, column] = every
        decoded = TokenDecoder(SPEC)(tokens)
        assert decoded.cells.min() >= 0
        assert decoded.cells.max() < 35
        assert decoded.features.min() >= 0
        assert decoded.features.max() < 2


def test_a_normalization_of_zero_is_an_error_that_names_the_feature():
    with pytest.raises(ValueError, match=r"'broken' \(id 7\) has normalization 0.0"):
        TokenDecoder(token_spec(Feature(7, "broken", 0.0)))


def test_the_tables_come_from_the_environment_and_are_not_saved():
    assert not TokenDecoder(SPEC).state_dict()


def test_stripping_keeps_everything_up_to_the_last_token_of_any_row():
    tokens = torch.full((3, 100, 3), 0xFF, dtype=torch.uint8)
    tokens[1, 20] = 0  # and padding before it
    stripped = StripPadding()(tokens)
    assert stripped.shape[1] == 32
    assert torch.equal(stripped, tokens[:, :32])
    assert StripPadding()(tokens[:, :25]).shape[1] == 25
    assert StripPadding()(tokens[:1]).shape[1] == 16
