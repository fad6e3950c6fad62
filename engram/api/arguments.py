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
    settings: Mapping[str, Any],
    env: Env | None = None,
    policy: PolicyChoice | None = None,
    total_timesteps: int | None = None,
    run: str | None = None,
    on_epoch: Callable[..., Any] | None = None,
    trust: bool = False,
) -> RunSettings:
    """The settings of a call of `engram.train`; raises `UserError` with everything that is wrong with them."""
    by_name = {**_flat(settings), **(_flat({"env": env}) if isinstance(env, Mapping) else {})}
    by_argument: dict[str, Any] = {} if policy is None else {**policy_choice(policy)}
    if env is not None and not isinstance(env, Mapping):
        by_argument["env"] = env_choice(env)
    if on_epoch is not None:
        by_argument["hooks"] = user_code.register(check_hook(on_epoch))
    if total_timesteps is not None:
        by_argument["trainer.total_timesteps"] = total_timesteps
    if run is not None:
        by_argument["run"] = run
    policies = POLICY_GROUPS if POLICY_GROUPS & by_argument.keys() else set()  # `policy=` excludes both
    if twice := sorted((by_argument.keys() | policies) & by_name.keys()):
        raise UserError(f"{', '.join(twice)}: given twice: leave one out")
    return load([], trust, by_argument | by_name)


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
    """Settings by dotted names instead of `py_agent={...}`, so that each name is checked for being given twice."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        nested = name in GROUPS and isinstance(value, Mapping)
        flat |= {f"{name}.{key}": part for key, part in value.items()} if nested else {name: value}
    return flat


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}…"
