"""Every tag becomes a feature."""

import numpy as np
import pytest

from engram.env.mettagrid.tags import TagRenamer, Tags
from engram.env.mettagrid.worlds import world
from engram.env.settings import Arena, Small, TMaze

TAGS = Tags(feature=6, first=10, names=("agent", "mine", "wall"))
EMPTY = [255, 255, 255]


@pytest.mark.parametrize("padding", [*range(9), 40])
def test_tags_become_features_and_nothing_else_changes(padding):
    tokens = [[0xFE, 1, 6], [0x55, 6, 0], [0x55, 4, 6], [0x12, 6, 2], [0x12, 6, 1]]
    renamed = [[0xFE, 1, 6], [0x55, 10, 1], [0x55, 4, 6], [0x12, 12, 1], [0x12, 11, 1]]
    observations = np.array([tokens + [EMPTY] * padding, [EMPTY] * (5 + padding)], np.uint8)
    for _ in range(2):  # once more changes nothing
        TagRenamer(TAGS, observations)()
        assert observations.tolist() == [renamed + [EMPTY] * padding, [EMPTY] * (5 + padding)]


@pytest.mark.parametrize("tokens", [16, 17, 31, 33, 100])
def test_all_tokens_are_renamed_however_many_are_used(tokens):
    observations = np.full((2, tokens, 3), 255, np.uint8)
    renaming = TagRenamer(TAGS, observations)
    for used in [*range(0, tokens + 1, 5), tokens, 3, tokens]:
        observations[:] = 255
        observations[1, :used] = 0x33, 6, 1
        renaming()
        assert (observations[1, :used] == [0x33, 11, 1]).all()
        assert (observations[1, used:] == 255).all()
        assert (observations[0] == 255).all()


def test_observations_are_renamed_in_place():
    buffer = np.full((4, 3, 3), 255, np.uint8)
    buffer[:, 0] = 0x33, 6, 1
    TagRenamer(TAGS, buffer[1:3])()
    assert buffer[:, 0].tolist() == [[0x33, 6, 1], [0x33, 11, 1], [0x33, 11, 1], [0x33, 6, 1]]


@pytest.mark.parametrize("settings", [TMaze(), Small(), Arena()])
def test_the_features_of_tags_have_ids_that_no_other_feature_has(settings):
    game = world(settings).game
    tags = Tags.of(game)
    ids = {feature.id for feature in game.id_map().features()}
    assert tags.feature in ids
    assert not ids & {feature.id for feature in tags.features()}
    assert [feature.name for feature in tags.features()] == [f"tag:{name}" for name in game.id_map().tag_names()]
