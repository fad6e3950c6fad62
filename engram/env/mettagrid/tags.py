"""Tags as features: mettagrid encodes the object on a cell as the value of one feature; here every tag is a feature.

Tag numbers are not quantities: a mine (3) and a wall (4) are not alike. A network learns little from such a number, and
it changes with every object that is added to a world.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from mettagrid.config.mettagrid_config import GameConfig

from engram.env.spec import EMPTY_LOCATION, Feature

TAG = "tag"  # the name of mettagrid's feature
_CHUNK = 8  # tokens
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


class TagRenamer:
    """Renames the tags in these observations [rows, tokens, 3], in place, at every call. A second call is harmless.

    Most tokens are padding at the end, which it skips: it starts with a few columns of tokens, and adds more as soon
    as any row uses the next one.
    """

    def __init__(self, tags: Tags, observations: np.ndarray) -> None:
        row_stride, token_stride, byte_stride = observations.strides
        self._renamed = _renamed(tags.feature, tags.first)
        self._pairs = np.ndarray(
            observations.shape[:2], _PAIR, observations, byte_stride, (row_stride, token_stride)
        )  # a view
        self._locations = observations[:, :, 0]
        self._use(_CHUNK)

    def __call__(self) -> None:
        while self._next.tobytes() != self._padding:
            self._use(self._used.shape[1] + _CHUNK)
        self._used[...] = self._renamed.take(self._used)

    def _use(self, tokens: int) -> None:
        """Treats the first `tokens` as used. The next one must be padding in every row."""
        self._used = self._pairs[:, :tokens]
        self._next = self._locations[:, tokens : tokens + 1]
        self._padding = bytes([EMPTY_LOCATION]) * self._next.size


@cache
def _renamed(feature: int, first: int) -> np.ndarray:
    """The renamed pair for every pair of feature and value."""
    values = np.arange(256, dtype=np.uint16)
    renamed = np.arange(0x10000, dtype=np.uint16).reshape(256, 256)  # the value is the high byte
    renamed[:, feature] = 0x100 | (first + values) & 0xFF
    return renamed.reshape(-1)
