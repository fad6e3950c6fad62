"""Checks the results of an environment's `reset` and `step`, and describes a fault in one sentence."""

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from engram.env.parts import OBSERVED, PREVIOUS_ACTION
from engram.env.row_writer import MisfitError

FLAGS = (bool, np.bool_)
PARALLEL_STEP = ("an observation", "a reward", "a termination", "a truncation", "an info")
NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)


def space_problem(space: spaces.Space, value: Any, path: str = "the observation") -> str | None:
    """The reason why a value is not in its space; None if it is in it."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return _nested_problem(space, value, path)
    if isinstance(space, spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete):
        problem = _array_problem(space, value)
    elif isinstance(space, spaces.Discrete):
        problem = None if space.contains(value) else f"is {value!r}, expected an integer of {space}"
    else:
        problem = None if space.contains(value) else f"is {value!r}, which is not in {space}"
    return None if problem is None else f"{path} {problem}"


def _nested_problem(space: spaces.Dict | spaces.Tuple, value: Any, path: str) -> str | None:
    items = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    expected = dict if isinstance(space, spaces.Dict) else tuple
    if not isinstance(value, expected):
        return f"{path} is of type {type(value).__name__}, expected a {expected.__name__}"
    unknown = [name for name in value if name not in space.spaces] if isinstance(space, spaces.Dict) else []
    if unknown or len(value) > len(space.spaces):
        return f"{path} has parts that its space lacks: {', '.join(map(str, unknown)) or len(value)}"
    for name, part in items:
        if (name not in value) if isinstance(value, dict) else name >= len(value):
            return f"{path}[{name!r}] is missing"
        problem = space_problem(part, value[name], f"{path}[{name!r}]")
        if problem is not None:
            return problem
    return None


def _array_problem(space: spaces.Space, value: Any) -> str | None:
    if not isinstance(value, np.ndarray) and not (space.shape == () and np.isscalar(value)):
        return f"is of type {type(value).__name__}, expected an array of shape {space.shape}"
    array = np.asarray(value)
    if array.shape != space.shape:
        return f"has shape {array.shape}, expected {space.shape}"
    if not np.can_cast(array.dtype, space.dtype, "same_kind"):
        return f"has dtype {array.dtype}, expected {space.dtype}"
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return "has NaN or infinite values"
    low, high = _bounds(space)
    if array.size and ((array < low) | (array > high)).any():
        return (
            f"has values from {array.min():g} to {array.max():g}, outside of its bounds {_range(low)} to {_range(high)}"
        )
    return None


def _bounds(space: spaces.Space) -> tuple[Any, Any]:
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return 0, 1


def _range(bound: Any) -> str:
    smallest, largest = np.min(bound), np.max(bound)
    return f"{smallest:g}" if smallest == largest else f"[{smallest:g}…{largest:g}]"


def check_in_space(space: spaces.Space, value: Any) -> None:
    if isinstance(space, spaces.Dict) and space.spaces.keys() == {OBSERVED, PREVIOUS_ACTION}:
        space, value = space[OBSERVED], value[OBSERVED]  # the previous action is not the environment's
    problem = space_problem(space, value)
    if problem is not None:
        raise MisfitError(problem)


def check_known(what: str, given: Collection[Any], agents: Sequence[Any]) -> None:
    """Raise if something is given for an agent that is not a possible one."""
    unknown = [agent for agent in given if agent not in agents]
    if unknown:
        names = ", ".join(map(str, agents))
        raise MisfitError(f"there is {what} for {unknown[0]}, which is not among the possible agents ({names})")


def check_flag(name: str, value: Any) -> None:
    """Whether an episode ended must be a bool; 0 and 1 are accepted."""
    if not isinstance(value, FLAGS) and not (isinstance(value, int | np.integer) and value in (0, 1)):
        raise MisfitError(f"{name} is {value!r}, expected a bool")


def check_present(name: str, agent: Any, flags: Mapping[Any, Any]) -> None:
    if agent not in flags:
        raise MisfitError(f"{name} is missing, expected a bool")


def check_observed(agent: Any, observations: Mapping[Any, Any]) -> None:
    if agent not in observations:
        raise MisfitError("among the agents, but without an observation")


def check_info(value: Any) -> None:
    if not isinstance(value, Mapping):
        raise MisfitError(f"the info is {value!r}, expected a dict"[:200])


def check_parallel_step(returned: Sequence[Any], agents: Collection[Any], possible: Sequence[Any]) -> None:
    """PettingZoo's step returns dicts with an entry for each agent, and only for possible agents."""
    for what, given in zip(PARALLEL_STEP, returned, strict=True):
        if not isinstance(given, Mapping):
            name = what.partition(" ")[2]
            raise MisfitError(
                f"step returned the {name}s {given!r}, expected a dict with an entry for each agent"[:200]
            )
        check_known(what, given, possible)
    if not isinstance(agents, Collection):
        raise MisfitError(f"the attribute agents is {agents!r}, expected a list of agents"[:200])
    check_known("an agent", agents, possible)
    if len({*agents}) < len(agents):
        raise MisfitError(f"the attribute agents holds an agent twice: {agents!r}"[:200])


def check_reward(value: Any) -> None:
    if isinstance(value, np.ndarray) and value.ndim:
        raise MisfitError(f"the reward is an array of shape {value.shape}, expected one number")
    if value is None:
        raise MisfitError("the reward is missing or None, expected a number")
    if not isinstance(value, NUMBERS) and not isinstance(value, np.ndarray):
        raise MisfitError(f"the reward is {value!r}, expected a number")
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        raise MisfitError("the reward is an integer beyond the largest float")


def as_rewards(rewards: Sequence[Any]) -> np.ndarray:
    """The rewards of all rows. Each is checked only if they do not form an array of numbers."""
    try:
        array = np.array(rewards)
        if array.ndim == 1 and array.dtype.kind in "fiub":
            return array.astype(np.float64, copy=False)
    except ValueError:  # arrays of different shapes
        pass
    for row, reward in enumerate(rewards):
        try:
            check_reward(reward)
        except MisfitError as error:
            error.row = row
            raise
    return np.array(rewards, np.float64)
