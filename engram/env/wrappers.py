"""Wrappers of Gymnasium environments by name: ours, some of Gymnasium's, and any `package.module:Class`."""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from engram.env.errors import explained
from engram.nearest import suggestion
from engram.settings import UserError


class Velocities(NamedTuple):
    """Where the velocities are in an observation of some size."""

    size: int
    places: tuple[int, ...]


VELOCITIES = {
    "Acrobot": Velocities(6, (4, 5)),
    "CartPole": Velocities(4, (1, 3)),
    "LunarLander": Velocities(8, (2, 3, 5)),
    "LunarLanderContinuous": Velocities(8, (2, 3, 5)),
    "MountainCar": Velocities(2, (1,)),
    "MountainCarContinuous": Velocities(2, (1,)),
    "Pendulum": Velocities(3, (2,)),
}


class MaskVelocity(gymnasium.ObservationWrapper):
    """Velocities read 0, so that only a memory of earlier positions tells how fast things move."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        name = env.spec.name if env.spec else type(env.unwrapped).__name__
        if name not in VELOCITIES:
            raise UserError(
                f"env.wrappers: mask_velocity does not know where the velocities of {name} are, "
                f"only those of {', '.join(VELOCITIES)}: write a wrapper of your own and name it package.module:Class"
            )
        size, places = VELOCITIES[name]
        shape = env.observation_space.shape
        if shape != (size,):
            raise UserError(
                f"env.wrappers: mask_velocity expects {size} numbers from {name}, got shape {shape}: "
                f"put it before wrappers that change the observation"
            )
        self._keep = np.ones(size, env.observation_space.dtype)
        self._keep[list(places)] = 0

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """Of one row or of many."""
        return observation * self._keep


# Of Gymnasium's, those that forget everything at a reset: running averages, for one, would spoil an exact replay.
WRAPPERS: dict[str, Callable[[gymnasium.Env], gymnasium.Env]] = {
    "mask_velocity": MaskVelocity,
    "AtariPreprocessing": partial(gymnasium.wrappers.AtariPreprocessing, grayscale_newaxis=True),
    "ClipAction": gymnasium.wrappers.ClipAction,
    "ClipReward": partial(gymnasium.wrappers.ClipReward, min_reward=-1.0, max_reward=1.0),
    "FlattenObservation": gymnasium.wrappers.FlattenObservation,
    "GrayscaleObservation": partial(gymnasium.wrappers.GrayscaleObservation, keep_dim=True),
    "RescaleAction": partial(gymnasium.wrappers.RescaleAction, min_action=np.float32(-1), max_action=np.float32(1)),
    "TimeAwareObservation": partial(gymnasium.wrappers.TimeAwareObservation, normalize_time=True),
}


def wrap(env: gymnasium.Env, names: list[str]) -> gymnasium.Env:
    """The environment inside these wrappers; the first name is the innermost."""
    for name in names:
        wrapper = _own(name) if ":" in name else _named(name)
        with explained(
            f"env.wrappers: {name} does not fit around {env} "
            f"(a wrapper is made with the environment as its only argument)"
        ):
            env = wrapper(env)
    return env


def unwrap_rows(env: gymnasium.Env) -> tuple[gymnasium.Env, list[Callable[[np.ndarray], np.ndarray]]]:
    """The environment without its outermost wrappers that can do all rows at once, and what they do, in order."""
    changes: list[Callable[[np.ndarray], np.ndarray]] = []
    while isinstance(env, MaskVelocity):
        changes.insert(0, env.observation)
        env = env.env
    return env, changes


def _named(name: str) -> Callable[[gymnasium.Env], gymnasium.Env]:
    if name in WRAPPERS:
        return WRAPPERS[name]
    hint = suggestion(name, WRAPPERS, otherwise=f"; there are {', '.join(WRAPPERS)}")
    raise UserError(f"env.wrappers: no wrapper is called {name}{hint} (your own is written package.module:Class)")


def _own(name: str) -> Callable[[gymnasium.Env], gymnasium.Env]:
    """A class of the user's. Nothing but a subclass of Wrapper is ever called, so settings cannot run other code."""
    module_name, _, class_name = name.partition(":")
    with explained(f"env.wrappers: {name}: {module_name} could not be imported"):
        found: Any = getattr(importlib.import_module(module_name), class_name, None)
    if not (isinstance(found, type) and issubclass(found, gymnasium.Wrapper)):
        got = "nothing by that name" if found is None else repr(found)
        raise UserError(f"env.wrappers: {name}: expected a subclass of gymnasium.Wrapper in {module_name}, got {got}")
    return found
