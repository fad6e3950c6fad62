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
_MORE = 8  # tokens: how exactly it is found out which are padding
_PAIR = np.dtype("<u2")  # a token's second and third byte: feature and value


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


class Renaming:
    """Renames the tags in these observations [rows, tokens, 3], where they are, whenever it is called.

    Those that have been renamed stay as they are. Most tokens are padding, at the end: how many are in use at most is
    found out by and by.
    """

    def __init__(self, tags: Tags, observations: np.ndarray) -> None:
        rows, tokens, bytes_ = observations.strides
        self._renamed = _renamed(tags.feature, tags.first)
        self._pairs = np.ndarray(observations.shape[:2], _PAIR, observations, bytes_, (rows, tokens))  # a view
        self._locations = observations[:, :, 0]
        self._take(_MORE)

    def __call__(self) -> None:
        while self._next.tobytes() != self._padding:
            self._take(self._used.shape[1] + _MORE)
        self._used[...] = self._renamed.take(self._used)

    def _take(self, tokens: int) -> None:
        """Have so many for those in use, until there is a location in the next one."""
        self._used = self._pairs[:, :tokens]
        self._next = self._locations[:, tokens : tokens + 1]
        self._padding = bytes([EMPTY_LOCATION]) * self._next.size


@cache
def _renamed(feature: int, first: int) -> np.ndarray:
    """What becomes of every pair of a feature and a value."""
    values = np.arange(256, dtype=np.uint16)
    renamed = np.arange(0x10000, dtype=np.uint16).reshape(256, 256)  # the value is the high byte
    renamed[:, feature] = 0x100 | (first + values) & 0xFF
    return renamed.reshape(-1)
