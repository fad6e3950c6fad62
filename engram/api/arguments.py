"""Arguments of the Python interface as settings: the same names, checks and messages as on the command line."""

from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

from engram.api.hooks import check_hook
from engram.config.groups import GROUPS
from engram.config.load import POLICY_GROUPS, load
from engram.config.run import RunSettings
from engram.env import user_code
from engram.settings import UserError

Env = str | PurePath | Callable[..., Any] | Mapping[str, Any]  # a name or file, a class or a function that makes one
PolicyChoice = str | PurePath | type


def run_settings(
    env: Env | None,
    policy: PolicyChoice | None,
    total_timesteps: int | None,
    run: str | None,
    on_epoch: Callable[..., Any] | None,
    settings: Mapping[str, Any],
    trust: bool = False,
) -> RunSettings:
    """The settings of a call of `engram.train`; raises `UserError` with everything that is wrong with them."""
    flat = {**_flat(settings), **(_flat({"env": env}) if isinstance(env, Mapping) else {})}
    given = {} if policy is None else policy_choice(policy)
    if env is not None and not isinstance(env, Mapping):
        given["env"] = env_choice(env)
    if on_epoch is not None:
        given["hooks"] = user_code.register(check_hook(on_epoch))
    numbers = {"trainer.total_timesteps": total_timesteps, "run": run}
    named: dict[str, Any] = given | {name: value for name, value in numbers.items() if value is not None}
    policies = POLICY_GROUPS if POLICY_GROUPS & given.keys() else set()
    if twice := sorted((named.keys() | policies) & flat.keys()):
        raise UserError(f"{', '.join(twice)}: given twice: leave one out")
    return load([], trust, named | flat)


def env_choice(env: Env) -> str:
    """The choice of `env=`. A class or function is registered under its name."""
    if isinstance(env, str | PurePath):
        return str(env)
    if callable(getattr(env, "decode_actions", None)) or callable(getattr(env, "forward", None)):
        raise UserError(f"env: {_short(env)} is a policy: the environment comes first, engram.train(env, policy)")
    if callable(env):
        return user_code.register(env)
    name = type(env).__name__
    raise UserError(
        f"env: {_short(env)} is of type {name}: give the name of an environment, a class, or a function that makes one"
        + (f" (env={name}, or env=lambda: {name}(...))" if hasattr(env, "step") else "")
    )


def policy_choice(policy: PolicyChoice) -> dict[str, str]:
    """`py_agent=` for a name or class, `agent=` for a YAML file."""
    if isinstance(policy, str | PurePath):
        text = str(policy)
        return {"agent" if text.endswith((".yaml", ".yml")) else "py_agent": text}
    if isinstance(policy, type):
        return {"py_agent": user_code.register(policy)}
    name = type(policy).__name__
    raise UserError(
        f"py_agent: {_short(policy)} is of type {name}: give the name of a policy, its class, or a YAML file"
        + (f" (policy={name}; its options are settings, as py_agent.hidden_size)" if hasattr(policy, "forward") else "")
    )


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without the mappings of groups, so that `py_agent={...}` can stand beside `policy=`."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        nested = name in GROUPS and isinstance(value, Mapping)
        flat |= {f"{name}.{key}": part for key, part in value.items()} if nested else {name: value}
    return flat


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}…"
