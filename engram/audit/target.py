"""Audit targets: a policy from `file.py:Name` or `package.module:Name`, built for an environment."""

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gymnasium import spaces
from torch import nn

from engram.audit.context import AuditSizes
from engram.audit.result import CannotAuditError
from engram.audit.retained import copy_policy
from engram.env import user_code
from engram.env.parts import leaves, part_of
from engram.env.spec import EnvSpec
from engram.settings import UserError

ROWS = 256  # `num_envs` of the environment that constructors see
SIZE = 32  # hidden size for constructors without a default
SIZES = ("hidden_size", "hidden_dim", "lstm_hidden_size", "lstm_size", "rnn_hidden_size", "rnn_size", "hidden_units")
ACTIONS = ("n_actions", "num_actions", "action_size", "action_dim", "act_dim", "ac_dim", "num_outputs", "output_dim")
OBSERVATIONS = ("obs_size", "obs_dim", "ob_dim", "observation_size", "observation_dim", "input_dim", "input_size")
INPUTS = (*OBSERVATIONS, "num_inputs", "in_dim", "in_features", "state_dim")


@dataclass(frozen=True)
class AuditTarget:
    name: str
    make: Callable[..., nn.Module]
    spec: EnvSpec
    takes_options: bool  # keyword arguments of `make` are options of the policy
    sizes: AuditSizes | None = None  # of the run that is rehearsed
    run: Path | None = None  # its directory


class EnvironmentStub:
    """The attributes of an environment that constructors of policies read, in any library."""

    def __init__(self, spec: EnvSpec) -> None:
        self.spec = spec
        self.single_observation_space = self.observation_space = spec.single_observation_space
        self.single_action_space = self.action_space = spec.single_action_space
        self.obs_height, self.obs_width = spec.window
        self.feature_normalizations = {feature.id: feature.normalization for feature in spec.features}
        self.action_names = list(spec.action_names)
        self.action_max_params = spec.action_max_params
        self.num_agents, self.num_envs = spec.agents, ROWS


def find_object(reference: str) -> Any:
    """The class, function or policy of this name. Imports the user's file."""
    module_name = reference.rpartition(":")[0]
    folder = str(Path(module_name).expanduser().resolve().parent)
    if module_name.endswith(".py") and folder not in sys.path:
        sys.path.insert(0, folder)  # for modules beside the file
    try:
        return user_code.find(reference, "py_agent")
    except UserError as error:
        raise CannotAuditError(str(error).removeprefix("py_agent: ")) from None


def target_from(found: Any, reference: str, spec: EnvSpec, options: Mapping[str, Any]) -> AuditTarget:
    """A target from a class, a function that makes a policy, or a policy."""
    if isinstance(found, nn.Module):
        return AuditTarget(reference, lambda: copy_policy(found, found), spec, takes_options=False)
    if isinstance(found, type) and issubclass(found, nn.Module):
        return AuditTarget(reference, partial(build, found, reference, spec, options), spec, takes_options=True)
    if callable(found) and not isinstance(found, type):
        return AuditTarget(reference, partial(build, found, reference, spec, options), spec, takes_options=False)
    raise CannotAuditError(
        f"{reference} is of type {type(found).__name__}: name a torch.nn.Module, or a function that makes one"
    )


def build(found: Callable[..., Any], reference: str, spec: EnvSpec, options: Mapping[str, Any], **more: Any) -> Any:
    """Call a constructor with arguments by their usual names; a required argument with another name is an error."""
    known, given, unknown = _arguments(spec), {}, []
    parameters, positional_only = _parameters(found)
    for name, parameter in parameters.items():
        if name in options or name in more:
            continue
        if parameter.default not in (parameter.empty, None):
            continue
        if name in known:
            given[name] = known[name]
        elif parameter.default is parameter.empty:
            unknown.append(name)
    if unknown:
        raise CannotAuditError(
            f"{reference} needs {', '.join(unknown)}, which has no known value: pass py_agent.{unknown[0]}=VALUE, "
            "or name a function of the environment that makes the policy"
        )
    if positional_only:  # def __init__(self, *args)
        return found(*given.values())
    return found(**given, **options, **more)


def _parameters(found: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    """The parameters of a function or constructor, with those behind *args and **kwargs; and if *args is all it has."""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    own = inspect.signature(found).parameters
    named = {name: p for name, p in own.items() if p.kind not in variable}
    kinds = {p.kind for p in own.values()}
    bases = found.__mro__[1:] if isinstance(found, type) and kinds & {*variable} else ()
    for base in bases:
        constructor = vars(base).get("__init__")
        if constructor is None or base in (nn.Module, object):
            continue
        inherited = list(inspect.signature(constructor).parameters.items())[1:]
        named = {**{name: p for name, p in inherited if p.kind not in variable}, **named}
        if not any(p.kind in variable for _, p in inherited):
            break
    if not named and kinds & {*variable}:
        named = {"env": inspect.Parameter("env", inspect.Parameter.POSITIONAL_OR_KEYWORD)}
    return named, kinds == {inspect.Parameter.VAR_POSITIONAL}


def _arguments(spec: EnvSpec) -> dict[str, Any]:
    env, action, observation = EnvironmentStub(spec), spec.single_action_space, spec.single_observation_space
    known: dict[str, Any] = dict.fromkeys(("env", "envs", "environment", "vec_env"), env)
    known |= dict.fromkeys(("observation_space", "obs_space", "ob_space"), observation)
    if observation.shape is not None:
        known |= dict.fromkeys(("observation_shape", "obs_shape", "input_shape"), observation.shape)
    known |= {"spec": spec, "env_spec": spec, "action_space": action, "lr_schedule": lambda _: 3e-4, "device": "cpu"}
    known |= dict.fromkeys(SIZES, SIZE)
    if isinstance(action, spaces.Discrete):
        known |= dict.fromkeys(ACTIONS, int(action.n))
    elif isinstance(action, spaces.Box):
        known |= dict.fromkeys(ACTIONS, int(action.shape[0]))
    if observation.shape is not None and len(observation.shape) == 1:
        known |= dict.fromkeys(INPUTS, observation.shape[0])
    return known


def spec_of(env: Any) -> EnvSpec:
    """The spec of an `EnvSpec`, a vectorised environment, or a single one; observations may have any shape."""
    if isinstance(env, EnvSpec) or isinstance(getattr(env, "spec", None), EnvSpec):
        return EnvSpec.of(env)
    observation = getattr(env, "single_observation_space", None) or getattr(env, "observation_space", None)
    action = getattr(env, "single_action_space", None) or getattr(env, "action_space", None)
    if not isinstance(observation, spaces.Box | spaces.Dict | spaces.Tuple) or not isinstance(
        action, spaces.Discrete | spaces.MultiDiscrete | spaces.Box
    ):
        raise CannotAuditError(
            f"env: a {type(env).__name__} with observations {observation} and actions {action} is not supported: "
            "single_observation_space must be a Box, Dict or Tuple, and single_action_space a Discrete, MultiDiscrete "
            "or Box"
        )
    name = type(env).__name__
    if not isinstance(observation, spaces.Box):
        return EnvSpec.of_parts(name, [part_of(leaf, name) for leaf in leaves(observation)], action)
    try:
        return EnvSpec.of(env)
    except (AttributeError, ValueError):  # a single environment, or observations that no encoder of Engram takes
        return EnvSpec(name, observation, action, observation_kind="vector")
