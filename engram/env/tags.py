"""Tags by name: mettagrid tells what stands on a cell by the value of one feature; here every tag is its own feature.

The number of a tag says nothing of the thing: that a mine is 3 and a wall 4 does not make them alike. Read as a
quantity it is nearly useless to a network, and it changes with every object that is added to a world.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from mettagrid.config.mettagrid_config import GameConfig

from engram.env.spec import EMPTY_LOCATION, Feature

TAG = "tag"  # mettagrid's feature


class Tags(NamedTuple):
    """The ids of a world's tags: the token (location, `feature`, n) becomes (location, `first` + n, 1)."""

    feature: int
    first: int
    names: tuple[str, ...]

    @classmethod
    def of(cls, game: GameConfig) -> "Tags":
        ids = game.id_map()
        by_name = {feature.name: feature.id for feature in ids.features()}
        return cls(by_name[TAG], max(by_name.values()) + 1, tuple(ids.tag_names()))

    def features(self) -> tuple[Feature, ...]:
        return tuple(Feature(self.first + number, f"{TAG}:{name}", 1.0) for number, name in enumerate(self.names))

    def rename(self, observations: np.ndarray) -> None:
        """Change observations [rows, tokens, 3] in place. Those that have been changed already stay as they are."""
        used = _used(observations)
        ids = _places_of_ids(*observations.shape[:2], used)[(observations[:, :used, 1] == self.feature).ravel()]
        numbers = observations.reshape(-1)  # a view: rows are contiguous
        numbers[ids] = numbers[ids + 1] + np.uint8(self.first)
        numbers[ids + 1] = 1


def _used(observations: np.ndarray) -> int:
    """A number of tokens after which there is only padding; found by halving, so up to twice as many as there are."""
    used = observations.shape[1]
    while used > 1 and observations[:, used // 2, 0].min() == EMPTY_LOCATION:
        used //= 2
    return used


@cache
def _places_of_ids(rows: int, tokens: int, used: int) -> np.ndarray:
    """Where the ids of each row's first `used` tokens are among all numbers of [rows, tokens, 3]."""
    return (np.arange(rows)[:, None] * (3 * tokens) + np.arange(used) * 3 + 1).ravel()
