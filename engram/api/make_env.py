"""Environments as training makes them, for a user's own loop."""

from typing import Any, overload

from engram.api.arguments import Env, run_settings
from engram.env.single import make_single
from engram.env.vector import VectorEnv
from engram.settings import UserError


@overload
def make_env(env: Env, *, num_envs: None = None, num_workers: int = 0, seed: int = 0, **settings: Any) -> Any: ...
@overload
def make_env(env: Env, *, num_envs: int, num_workers: int = 0, seed: int = 0, **settings: Any) -> VectorEnv: ...
def make_env(env: Env, *, num_envs: int | None = None, num_workers: int = 0, seed: int = 0, **settings: Any) -> Any:
    """One environment with its wrappers, or with `num_envs` a `VectorEnv` of many.

    >>> import engram
    >>> env = engram.make_env("CartPole-v1", wrappers=["mask_velocity"])
    >>> observation, info = env.reset(seed=1)
    >>> float(observation[1])
    0.0
    >>> engram.make_env("recall", delay=20, num_envs=64).rows
    64

    `env` is as in `engram.train`, and `settings` are those of the environment. One environment is a
    `gymnasium.Env`, or a `pettingzoo.ParallelEnv` if the environment is one; it is seeded with `env.reset(seed=…)`.
    """
    if env is None:
        raise UserError("env: None is not an environment: give a name, a class, or a function that makes one")
    if num_envs is not None and not isinstance(num_envs, int):
        raise UserError(f"num_envs: {num_envs!r} is not a whole number")
    named = {name if name.startswith("env.") else f"env.{name}": value for name, value in settings.items()}
    resolved = run_settings(named, env).env
    if num_envs is None:
        return make_single(resolved)
    return VectorEnv(resolved, num_envs, num_workers, seed)
