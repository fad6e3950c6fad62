"""Gymnasium wrappers by name: our own, some of Gymnasium's, and any `package.module:Class`."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces

from engram.env.actions import encode_action, joint_choices
from engram.env.errors import explained
from engram.env.parts import OBSERVED, PREVIOUS_ACTION
from engram.nearest import suggestion
from engram.settings import UserError

SIZED = ("frame_stack", "resize", "AtariPreprocessing")  # wrappers with sizes as arguments
MAX_SIZE = 10_000  # since stored settings may be a stranger's
Transform = Callable[[np.ndarray], np.ndarray]  # of observations, one row or many


class Velocities(NamedTuple):
    """The indices of the velocities in an observation of this size."""

    size: int
    indices: tuple[int, ...]


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
    """Sets velocities to 0, so that only memory of earlier positions reveals them."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        name = env.spec.name if env.spec else type(env.unwrapped).__name__
        if name not in VELOCITIES:
            raise UserError(
                f"env.wrappers: mask_velocity does not know the velocities of {name}, only those of "
                f"{', '.join(VELOCITIES)}: write your own wrapper and name it package.module:Class"
            )
        size, indices = VELOCITIES[name]
        shape = env.observation_space.shape
        if shape != (size,):
            raise UserError(
                f"env.wrappers: mask_velocity expects {size} numbers from {name}, got shape {shape}: "
                f"put it before wrappers that change the observation"
            )
        self._mask = np.ones(size, env.observation_space.dtype)
        self._mask[list(indices)] = 0

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """Masks one row or many."""
        return observation * self._mask


def only_symbols(space: spaces.Space) -> bool:
    """Whether observations are only symbols, as in card games: they mean little without the previous action."""
    if isinstance(space, spaces.Tuple):
        return all(map(only_symbols, space.spaces))
    return isinstance(space, spaces.Discrete | spaces.MultiDiscrete)


def with_previous_action(env: gymnasium.Env) -> gymnasium.Env:
    """The environment with the previous action in observations, if they are only symbols, or if it is of POPGym.

    POPGym's own experiments always show it: memory can filter noise only if it knows the actions. Continuous actions
    are left out here: they would show the exploration noise, which is correlated in time, and policies would learn to
    work against it.
    """
    popgym = type(env.unwrapped).__module__.partition(".")[0] == "popgym"
    shown = popgym and not isinstance(env.action_space, spaces.Box)
    return PreviousAction(env) if shown or only_symbols(env.observation_space) else env


class PreviousAction(gymnasium.Wrapper):
    """Observations {"observation": …, "previous_action": …}: the action is zeros at an episode's start."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        joint = joint_choices(env.action_space) if only_symbols(env.observation_space) else None
        self._size = joint or spaces.flatdim(env.action_space)
        action = spaces.Box(-np.inf, np.inf, (self._size,), np.float32)
        self.observation_space = spaces.Dict({OBSERVED: env.observation_space, PREVIOUS_ACTION: action})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return {OBSERVED: observation, PREVIOUS_ACTION: np.zeros(self._size, np.float32)}, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        previous = encode_action(self.env.action_space, action, self._size)
        return {OBSERVED: observation, PREVIOUS_ACTION: previous}, reward, terminated, truncated, info


# Only wrappers that keep nothing across resets: running averages, for example, would break exact replays.
WRAPPERS: dict[str, Callable[..., gymnasium.Env]] = {
    "mask_velocity": MaskVelocity,
    "frame_stack": gymnasium.wrappers.FrameStackObservation,
    "resize": gymnasium.wrappers.ResizeObservation,
    "sticky_action": gymnasium.wrappers.StickyAction,
    "AtariPreprocessing": partial(gymnasium.wrappers.AtariPreprocessing, grayscale_newaxis=True),
    "ClipAction": gymnasium.wrappers.ClipAction,
    "ClipReward": partial(gymnasium.wrappers.ClipReward, min_reward=-1.0, max_reward=1.0),
    "FlattenObservation": gymnasium.wrappers.FlattenObservation,
    "GrayscaleObservation": partial(gymnasium.wrappers.GrayscaleObservation, keep_dim=True),
    "RescaleAction": partial(gymnasium.wrappers.RescaleAction, min_action=np.float32(-1), max_action=np.float32(1)),
    "TimeAwareObservation": partial(gymnasium.wrappers.TimeAwareObservation, normalize_time=True),
}


def wrap(env: gymnasium.Env, wrappers: Sequence[str | Mapping[str, Any]]) -> gymnasium.Env:
    """Wraps an environment; the first wrapper is the innermost. `{name: value}` is one argument, or several by name."""
    for given in wrappers:
        name, arguments, options = _read(given)
        wrapper = _imported(name) if ":" in name else _named(name)
        if name in SIZED:
            _check_sizes(name, [*arguments, *options.values()])
        called = ", ".join(["env", *map(repr, arguments), *(f"{key}={value!r}" for key, value in options.items())])
        with explained(f"env.wrappers: {name}({called}) does not fit around {env}"):
            env = wrapper(env, *arguments, **options)
    return env


def _read(given: str | Mapping[str, Any]) -> tuple[str, list[Any], dict[str, Any]]:
    """The name of a wrapper, and its arguments after the environment."""
    if isinstance(given, str):
        return given, [], {}
    if len(given) != 1:
        raise UserError(f"env.wrappers: expected one name with its arguments, {{name: arguments}}, got {dict(given)}")
    ((name, value),) = given.items()
    if value is None:
        return str(name), [], {}
    return (str(name), [], dict(value)) if isinstance(value, Mapping) else (str(name), [value], {})


def _check_sizes(name: str, values: Sequence[Any]) -> None:
    for value in values:
        if isinstance(value, list | tuple):
            _check_sizes(name, value)
        elif isinstance(value, int | float) and value > MAX_SIZE:
            raise UserError(f"env.wrappers: {name}: {value} is too large: at most {MAX_SIZE}")


def unwrap_rows(env: gymnasium.Env) -> tuple[gymnasium.Env, list[Transform]]:
    """Removes the outermost wrappers that can transform all rows at once; returns their transforms, in order."""
    transforms: list[Transform] = []
    while isinstance(env, MaskVelocity):
        transforms.insert(0, env.observation)
        env = env.env
    return env, transforms


def _named(name: str) -> Callable[..., gymnasium.Env]:
    if name in WRAPPERS:
        return WRAPPERS[name]
    hint = suggestion(name, WRAPPERS, otherwise=f"; expected one of {', '.join(WRAPPERS)}")
    raise UserError(f"env.wrappers: unknown wrapper {name}{hint} (write your own as package.module:Class)")


def _imported(name: str) -> Callable[..., gymnasium.Env]:
    """A user's wrapper class. Only subclasses of Wrapper are ever called, so settings cannot run other code."""
    module_name, _, class_name = name.partition(":")
    with explained(f"env.wrappers: {name}: {module_name} could not be imported"):
        found: Any = getattr(importlib.import_module(module_name), class_name, None)
    if not (isinstance(found, type) and issubclass(found, gymnasium.Wrapper)):
        got = "nothing by that name" if found is None else repr(found)
        raise UserError(f"env.wrappers: {name}: expected a subclass of gymnasium.Wrapper in {module_name}, got {got}")
    return found
