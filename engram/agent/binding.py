"""Whether a policy made for one environment can act in another, and if not, all that differs."""

from collections.abc import Iterable

from gymnasium import spaces

from engram.env.spec import EnvSpec
from engram.settings import UserError


def check_fits(policy: EnvSpec, environment: EnvSpec) -> None:
    """Raises `UserError` with all that a policy made for the one cannot do in the other. Features are not compared:
    they are translated by name."""
    problems = [*_observations(policy, environment), *_actions(policy, environment)]
    if problems:
        raise UserError(
            f"agent: a policy made for {policy.name} cannot play {environment.name}: {'; '.join(problems)}. "
            "Train one for it, or choose an environment that agrees in these"
        )


def _observations(policy: EnvSpec, environment: EnvSpec) -> list[str]:
    if policy.observation_kind != environment.observation_kind:
        ours, theirs = (spec.observation_kind.removesuffix("s") for spec in (policy, environment))
        return [f"it reads {ours}s and would see {theirs}s"]
    if policy.observation_kind == "tokens":  # however many
        sizes = [_size(spec.window) for spec in (policy, environment)]
    else:
        sizes = [_size(spec.single_observation_space.shape) for spec in (policy, environment)]
    return [] if sizes[0] == sizes[1] else [f"it sees {sizes[0]}, and would see {sizes[1]}"]


def _actions(policy: EnvSpec, environment: EnvSpec) -> list[str]:
    problems = []
    ours, theirs = (describe_actions(spec) for spec in (policy, environment))
    if ours != theirs:
        problems.append(f"it has {ours}, the environment {theirs}")
    if policy.action_names and environment.action_names:
        problems += _names(policy.action_names, environment.action_names)
    return problems


def _names(ours: tuple[str, ...], theirs: tuple[str, ...]) -> list[str]:
    missing, new = [name for name in ours if name not in theirs], [name for name in theirs if name not in ours]
    problems = [f"the environment has no action {', '.join(missing)}"] if missing else []
    problems += [f"the policy has no action {', '.join(new)}"] if new else []
    if not problems and ours != theirs:
        place = next(i for i, (our, their) in enumerate(zip(ours, theirs, strict=False)) if our != their)
        problems.append(f"action {place} is {ours[place]} to the policy and {theirs[place]} to the environment")
    return problems


def describe_actions(spec: EnvSpec) -> str:
    """How many actions of which kind, in words that are equal only for spaces that are."""
    space = spec.single_action_space
    if isinstance(space, spaces.Discrete):
        return f"{space.n} actions"
    if isinstance(space, spaces.MultiDiscrete) and spec.action_max_params is not None:
        return f"types of actions with parameters up to {', '.join(map(str, spec.action_max_params))}"
    if isinstance(space, spaces.MultiDiscrete):
        return f"choices among {_size(space.nvec)}"
    return f"continuous actions of {_size(space.shape)}"


def _size(shape: Iterable[int]) -> str:
    return " x ".join(str(side) for side in shape)
