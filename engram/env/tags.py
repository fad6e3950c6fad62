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
_FEW = 32  # tokens that are renamed sooner than it is found out which of them are padding
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

    def rename(self, observations: np.ndarray) -> None:
        """Change observations [rows, tokens, 3] in place. Those that have been changed already stay as they are."""
        rows, tokens, bytes_ = observations.strides
        used = observations.shape[0], _used(observations)
        pairs = np.ndarray(used, _PAIR, observations, offset=bytes_, strides=(rows, tokens))  # a view
        pairs[...] = _renamed(self.feature, self.first).take(pairs)


def _used(observations: np.ndarray) -> int:
    """A number of tokens after which there is only padding; found by halving, so often more than there are."""
    used = observations.shape[1]
    while used > _FEW and observations[:, used // 2, 0].min() == EMPTY_LOCATION:
        used //= 2
    return used


@cache
def _renamed(feature: int, first: int) -> np.ndarray:
    """What becomes of every pair of a feature and a value."""
    values = np.arange(256, dtype=np.uint16)
    renamed = np.arange(0x10000, dtype=np.uint16).reshape(256, 256)  # the value is the high byte
    renamed[:, feature] = 0x100 | (first + values) & 0xFF
    return renamed.reshape(-1)
