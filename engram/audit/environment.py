"""What an audit needs to know of an environment: its spaces, whoever's it is."""

from typing import Any

from gymnasium import spaces

from engram.audit.result import CannotAuditError
from engram.env.spec import EnvSpec


def spec_of(env: Any) -> EnvSpec:
    """The spec of a spec, of a vectorised environment, or of a single one; observations may have any shape."""
    if isinstance(env, EnvSpec) or isinstance(getattr(env, "spec", None), EnvSpec):
        return EnvSpec.of(env)
    observation = getattr(env, "single_observation_space", None) or getattr(env, "observation_space", None)
    action = getattr(env, "single_action_space", None) or getattr(env, "action_space", None)
    if not isinstance(observation, spaces.Box) or not isinstance(
        action, spaces.Discrete | spaces.MultiDiscrete | spaces.Box
    ):
        raise CannotAuditError(
            f"env: a {type(env).__name__} with observations {observation} and actions {action} is not understood: give "
            "something with Gymnasium's single_observation_space, a Box, and single_action_space, a Discrete, "
            "MultiDiscrete or Box"
        )
    try:
        return EnvSpec.of(env)
    except (AttributeError, ValueError):  # a single environment, or observations that Engram's own encoders do not take
        return EnvSpec(type(env).__name__, observation, action, observation_kind="vector")
