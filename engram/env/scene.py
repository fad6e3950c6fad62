"""Scenes: what an environment looks like to a person: objects on a grid, or a picture."""

import warnings
from typing import NamedTuple

import numpy as np

from engram.env.block import Buffers
from engram.env.registry import make_block, make_spec
from engram.env.settings import EnvSettings, Gym, PettingZoo


class GridObject(NamedTuple):
    kind: str
    row: int
    column: int
    agent: int | None  # the index of the agent, if it is one
    inventory: dict[str, int]


class GridScene(NamedTuple):
    height: int
    width: int
    objects: list[GridObject]


Scene = GridScene | np.ndarray  # a picture is uint8 [height, width, 3]


def with_rendering(settings: EnvSettings) -> EnvSettings:
    """The settings with rendering turned on, if the environment supports it."""
    if not isinstance(settings, Gym | PettingZoo):
        return settings
    rendering = settings.model_copy(update={"kwargs": {**settings.kwargs, "render_mode": "rgb_array"}})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            spec = make_spec(rendering)
            block = make_block(rendering, range(1), 0, Buffers.allocate(spec, spec.agents))
            try:
                block.reset()
                return settings if block.scene() is None else rendering
            finally:
                block.close()
        except Exception:  # many environments refuse the mode or lack a package for it, each with its own error
            return settings


def picture(rendered: object) -> np.ndarray | None:
    """A copy of the result of an environment's `render` if it is a picture, else None."""
    if not isinstance(rendered, np.ndarray) or rendered.dtype != np.uint8 or rendered.shape[2:] != (3,):
        return None
    return rendered.copy()  # some environments draw into the same array again
