"""Actions: the policy's flat form of an action space, and the way back to the environment's own actions."""

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from engram.settings import UserError

Read = Callable[[np.ndarray], list[Any]]


def policy_action_space(space: spaces.Space, where: str) -> spaces.Discrete | spaces.MultiDiscrete | spaces.Box:
    """The action space of the policy: flat, with values from 0. `reader` converts its actions back."""
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
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


def action_names(env: Any, space: spaces.Space) -> tuple[str, ...]:
    """The names that an environment gives its actions: `action_names`, Atari's meanings or MiniGrid's enumeration."""
    env = env.unwrapped
    meanings = getattr(env, "get_action_meanings", None)
    names: Any = getattr(env, "action_names", None)
    if not names:
        names = meanings() if callable(meanings) else getattr(env, "actions", None)
    if isinstance(names, type) and issubclass(names, Enum):
        names = [member.name for member in names]
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return ()
    return tuple(names) if isinstance(space, spaces.Discrete) and len(names) == space.n else ()


def reader(space: spaces.Space) -> Read:
    """A function that converts rows of policy actions to the environment's actions, clipped to the bounds of a Box."""
    if isinstance(space, spaces.Discrete):
        return partial(_read_discrete, int(space.start))
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        start = space.start if isinstance(space, spaces.MultiDiscrete) else np.zeros(space.shape, space.dtype)
        return partial(_read_multi_discrete, start)
    return partial(_read_box, space)


def _read_discrete(start: int, actions: np.ndarray) -> list[Any]:
    return (actions + start if start else actions).tolist()


def _read_multi_discrete(start: np.ndarray, actions: np.ndarray) -> list[Any]:
    return list(actions.reshape(len(actions), *start.shape).astype(start.dtype) + start)


def _read_box(space: spaces.Box, actions: np.ndarray) -> list[Any]:
    values = actions.reshape(len(actions), *space.shape).astype(np.float64)
    if np.issubdtype(space.dtype, np.integer):
        np.rint(values, out=values)
    return list(np.clip(values, space.low, space.high).astype(space.dtype))
