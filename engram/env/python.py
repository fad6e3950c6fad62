"""Your own environments: a class, or a function that makes one, from a file, a package or this program."""

from contextlib import closing
from typing import Any

import gymnasium
from gymnasium.wrappers import TimeLimit
from pettingzoo import ParallelEnv

from engram.env import gymnasium as gymnasium_adapter
from engram.env import pettingzoo as pettingzoo_adapter
from engram.env import user_code
from engram.env.block import Block, Buffers
from engram.env.errors import concerns_arguments, explained
from engram.env.settings import PythonEnv
from engram.env.spec import EnvSpec
from engram.env.wrappers import wrap
from engram.settings import UserError


def spec(settings: PythonEnv) -> EnvSpec:
    with explained(f"env: {settings.title} cannot be used"), closing(make(settings)) as env:
        adapter = pettingzoo_adapter if isinstance(env, ParallelEnv) else gymnasium_adapter
        return adapter.spec_of(env, settings.title, settings)


def block(settings: PythonEnv, env_ids: range, seed: int, buffers: Buffers) -> Block:
    envs = [make(settings) for _ in env_ids]
    if len({id(env.unwrapped) for env in envs}) < len(envs):
        raise UserError(f"env: {settings.title} returned the same environment twice: make a new one at every call")
    if isinstance(envs[0], gymnasium.Env):
        _check_same_spaces(settings.title, envs)
    kind = pettingzoo_adapter.PettingZooBlock if isinstance(envs[0], ParallelEnv) else gymnasium_adapter.GymBlock
    return kind(envs, settings.title, settings, env_ids, seed, buffers)


def make(settings: PythonEnv) -> Any:
    """Makes one environment with its wrappers: a `gymnasium.Env` or a `pettingzoo.ParallelEnv`."""
    found = user_code.find(settings.name, "env")
    if not callable(found):
        raise UserError(f"env: {settings.title} is {found!r}: name a class, or a function that makes an environment")
    try:
        env = found(**settings.kwargs)
    except TypeError as error:
        if concerns_arguments(error):
            raise UserError(f"env.kwargs: {error}") from error
        raise
    if isinstance(env, ParallelEnv):
        if settings.wrappers or settings.max_steps:
            raise UserError(
                f"env.wrappers, env.max_steps: not for {settings.title}, which makes PettingZoo environments"
            )
        return pettingzoo_adapter.check_agents(env, f"env: {settings.title}")
    if not isinstance(env, gymnasium.Env):
        hint = f": call it, {env.__name__}()" if isinstance(env, type) and hasattr(env, "step") else ""
        raise UserError(
            f"env: {settings.title} made {env!r}, expected a gymnasium.Env or a pettingzoo.ParallelEnv{hint}"
        )
    if settings.max_steps is not None:
        env = TimeLimit(env, settings.max_steps)
    return wrap(env, settings.wrappers)


def _check_same_spaces(name: str, envs: list[gymnasium.Env]) -> None:
    """A function may make a different environment at each call."""
    first = envs[0]
    for env in envs[1:]:
        for one, other in ((first.observation_space, env.observation_space), (first.action_space, env.action_space)):
            if one is not other and one != other:
                raise UserError(
                    f"env: {name} made environments with different spaces, {one} and {other}: "
                    "make the same ones at every call"
                )
