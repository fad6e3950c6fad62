"""Actions: the policy's flat form of an action space, its conversion to the environment's form, and random play."""

import math
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from engram.env.errors import WRONG_STEP
from engram.env.row_writer import flat_mask, mask_of
from engram.settings import UserError

ConvertActions = Callable[[np.ndarray], list[Any]]
MAX_JOINT = 256  # combinations that several choices may have to become one choice


def policy_action_space(
    space: spaces.Space, where: str, joint: bool = False
) -> spaces.Discrete | spaces.MultiDiscrete | spaces.Box:
    """The action space of the policy: flat, with values from 0. `action_converter` converts its actions back.

    With `joint`, a few choices become one choice of all their combinations: independent choices of row and column
    cannot prefer one cell of a board.
    """
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        combinations = joint_choices(space) if joint else None
        return spaces.Discrete(combinations) if combinations else spaces.MultiDiscrete(space.nvec.ravel())
    if isinstance(space, spaces.MultiBinary):
        return spaces.MultiDiscrete(np.full(int(np.prod(space.shape)), 2))
    if isinstance(space, spaces.Box):
        low, high = space.low.ravel().astype(np.float32), space.high.ravel().astype(np.float32)
        return spaces.Box(low, high, low.shape, np.float32)
    raise UserError(
        f"{where}: actions are {space}, expected Discrete, MultiDiscrete, MultiBinary or Box: "
        f"convert them with a wrapper"
    )


def joint_choices(space: spaces.Space) -> int | None:
    """The number of combinations of several choices, if they are few enough to be chosen as one."""
    combinations = math.prod(map(int, space.nvec.ravel())) if isinstance(space, spaces.MultiDiscrete) else 0
    return combinations if 0 < combinations <= MAX_JOINT else None


def encode_action(space: spaces.Space, action: Any, size: int) -> np.ndarray:
    """An action of the environment as numbers for a policy: one-hots for choices.

    If `size` is the number of combinations, there is one one-hot of all of them. A policy can then remember the cells
    it chose by adding up its inputs; a sum of separate rows and columns would not say which row goes with which column.
    """
    is_joint = size == joint_choices(space) and size != spaces.flatdim(space)
    if isinstance(space, spaces.MultiDiscrete) and is_joint:
        encoded = np.zeros(size, np.float32)
        encoded[np.ravel_multi_index(np.ravel(action - space.start), tuple(space.nvec.ravel()))] = 1
        return encoded
    return np.asarray(spaces.flatten(space, action), np.float32)


def action_names(env: Any, space: spaces.Space) -> tuple[str, ...]:
    """The names that an environment gives its actions: `action_names`, Atari's meanings or MiniGrid's enumeration.

    One choice of all combinations is named by the action of the environment, such as (2, 0).
    """
    env = env.unwrapped
    own = getattr(env, "action_space", None)
    if isinstance(own, spaces.MultiDiscrete) and isinstance(space, spaces.Discrete):
        combinations = np.ndindex(*own.nvec.ravel())
        return tuple(str(tuple((own.start.ravel() + index).tolist())) for index in combinations)
    meanings = getattr(env, "get_action_meanings", None)
    names = getattr(env, "action_names", None) or (meanings() if callable(meanings) else getattr(env, "actions", None))
    if isinstance(names, type) and issubclass(names, Enum):
        names = [member.name for member in names]
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return ()
    return tuple(names) if isinstance(space, spaces.Discrete) and len(names) == space.n else ()


def action_converter(space: spaces.Space) -> ConvertActions:
    """A function that converts rows of policy actions to the environment's actions, clipped to the bounds of a Box."""
    if isinstance(space, spaces.Discrete):
        return partial(_convert_discrete, int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        return partial(_convert_multi_discrete, space.start, space.nvec.ravel())
    if isinstance(space, spaces.MultiBinary):
        return partial(_convert_multi_discrete, np.zeros(space.shape, space.dtype), None)
    return partial(_convert_box, space)


def _convert_discrete(start: int, actions: np.ndarray) -> list[Any]:
    return (actions + start if start else actions).tolist()


def _convert_multi_discrete(start: np.ndarray, sizes: np.ndarray | None, actions: np.ndarray) -> list[Any]:
    if actions.ndim == 1 and sizes is not None:  # a joint choice
        actions = np.stack(np.unravel_index(actions, tuple(sizes)), axis=-1)
    return list(actions.reshape(len(actions), *start.shape).astype(start.dtype) + start)


def _convert_box(space: spaces.Box, actions: np.ndarray) -> list[Any]:
    values = actions.reshape(len(actions), *space.shape).astype(np.float64)
    if np.issubdtype(space.dtype, np.integer):
        np.rint(values, out=values)
    return list(np.clip(values, space.low, space.high).astype(space.dtype))


def random_play(env: gymnasium.Env, steps: int) -> Iterator[Any]:
    """The first `steps` observations of episodes that are played with random actions, which respect action masks."""
    rng = np.random.default_rng(0)
    actions, convert = policy_action_space(env.action_space, "random play"), action_converter(env.action_space)
    episode, ended = 0, True
    for _ in range(steps):
        if ended:
            observation, info = env.reset(seed=episode)
            episode, ended = episode + 1, False
        else:
            action = convert(random_action(actions, mask_of(observation, info), rng)[None])[0]
            returned = env.step(action)
            if not isinstance(returned, tuple) or len(returned) != 5:
                raise UserError(f"{type(env.unwrapped).__name__}: {WRONG_STEP}, got {str(returned)[:60]}")
            observation, _, terminated, truncated, info = returned
            ended = bool(terminated or truncated)
        yield observation


def random_action(space: gymnasium.Space, mask: Any, rng: np.random.Generator) -> np.ndarray:
    """An action of a policy's action space, sampled from those that the mask allows."""
    if isinstance(space, gymnasium.spaces.Box):
        low, high = (np.clip(bound, -10, 10) for bound in (space.low, space.high))
        return rng.uniform(low, high).astype(np.float32)
    sizes = [int(space.n)] if isinstance(space, gymnasium.spaces.Discrete) else [int(n) for n in space.nvec]
    allowed = np.ones(sum(sizes), bool) if mask is None else flat_mask(mask)
    if len(allowed) != sum(sizes):
        allowed = np.ones(sum(sizes), bool)
    choices = [np.flatnonzero(part) for part in np.split(allowed, np.cumsum(sizes)[:-1])]
    sampled = [int(rng.choice(choice)) if len(choice) else 0 for choice in choices]
    return np.array(sampled[0] if isinstance(space, gymnasium.spaces.Discrete) else sampled, np.int32)
