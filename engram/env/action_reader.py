"""Actions: the policy's flat form of an action space, and the way back to the environment's own actions."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from engram.settings import UserError

Read = Callable[[np.ndarray], list[Any]]
MAX_JOINT = 256  # combinations of several choices that a policy chooses from as one


def policy_action_space(
    space: spaces.Space, where: str, joint: bool = False
) -> spaces.Discrete | spaces.MultiDiscrete | spaces.Box:
    """The action space of the policy: flat, with values from 0. `reader` converts its actions back.

    With `joint`, a few choices become one choice of all their combinations. Independent choices of row and column cannot
    prefer one cell of a board.
    """
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        if joint and (combinations := math.prod(map(int, space.nvec.ravel()))) <= MAX_JOINT:
            return spaces.Discrete(combinations)
        return spaces.MultiDiscrete(space.nvec.ravel())
    if isinstance(space, spaces.MultiBinary):
        return spaces.MultiDiscrete(np.full(int(np.prod(space.shape)), 2))
    if isinstance(space, spaces.Box):
        low, high = space.low.ravel().astype(np.float32), space.high.ravel().astype(np.float32)
        return spaces.Box(low, high, low.shape, np.float32)
    raise UserError(
        f"{where}: actions are {space}, expected Discrete, MultiDiscrete, MultiBinary or Box: "
        f"convert them with a wrapper"
    )


def reader(space: spaces.Space) -> Read:
    """A function that converts rows of policy actions to the environment's actions, clipped to the bounds of a Box."""
    if isinstance(space, spaces.Discrete):
        return partial(_read_discrete, int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        return partial(_read_multi_discrete, space.start, space.nvec.ravel())
    if isinstance(space, spaces.MultiBinary):
        return partial(_read_multi_discrete, np.zeros(space.shape, space.dtype), None)
    return partial(_read_box, space)


def _read_discrete(start: int, actions: np.ndarray) -> list[Any]:
    return (actions + start if start else actions).tolist()


def _read_multi_discrete(start: np.ndarray, sizes: np.ndarray | None, actions: np.ndarray) -> list[Any]:
    if actions.ndim == 1 and sizes is not None:  # a joint choice
        actions = np.stack(np.unravel_index(actions, tuple(sizes)), axis=-1)
    return list(actions.reshape(len(actions), *start.shape).astype(start.dtype) + start)


def _read_box(space: spaces.Box, actions: np.ndarray) -> list[Any]:
    values = actions.reshape(len(actions), *space.shape).astype(np.float64)
    if np.issubdtype(space.dtype, np.integer):
        np.rint(values, out=values)
    return list(np.clip(values, space.low, space.high).astype(space.dtype))
