"""Transfer to a different environment: compatibility checks, features mapped by name, and weights for new features.

A trained policy that meets new features gets a larger network and keeps what it has learned:

    spec = with_new_features(old.env_spec, features)  # the old features keep their place, the new ones follow
    policy = Fast(spec)
    load_weights(policy, old.state_dict(), old.env_spec)
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from engram.agent.actions import describe_actions, format_sizes
from engram.agent.policies.base import Policy
from engram.env.parts import Part
from engram.env.spec import EMPTY_LOCATION, EnvSpec, Feature
from engram.settings import UserError

PADDING = EMPTY_LOCATION  # fills all three bytes of an empty token

Features = Mapping[str, Mapping[str, Any]] | Sequence[Feature]  # name -> {"id": 3, "normalization": 10.0}, or objects


def check_compatible(policy: EnvSpec, environment: EnvSpec) -> None:
    """Raise `UserError` with all reasons why a policy made for one spec cannot act in the other.

    Features are not compared, since they are mapped by name.
    """
    problems = [*_compare_observations(policy, environment), *_compare_actions(policy, environment)]
    if problems:
        raise UserError(
            f"agent: a policy made for {policy.name} cannot act in {environment.name}: {'; '.join(problems)}. "
            "Train a policy for it, or choose an environment that matches"
        )


def _compare_observations(policy: EnvSpec, environment: EnvSpec) -> list[str]:
    if policy.observation_kind != environment.observation_kind:
        expected, got = (spec.observation_kind.removesuffix("s") for spec in (policy, environment))
        return [f"the policy reads {expected}s, the environment gives {got}s"]
    if policy.observation_kind == "parts":
        return _compare_parts(policy, environment)
    if policy.observation_kind == "tokens":  # the number of tokens may differ
        expected, got = (format_sizes(spec.window) for spec in (policy, environment))
    else:
        expected, got = (_describe_part(spec.all_parts[0]) for spec in (policy, environment))
    return [] if expected == got else [f"the policy reads observations of {expected}, the environment gives {got}"]


def _compare_parts(policy: EnvSpec, environment: EnvSpec) -> list[str]:
    """Parts are matched by name; the policy ignores parts that it does not know."""
    given = {part.name: part for part in environment.parts}
    problems = [f"the environment has no part {part.name!r}" for part in policy.parts if part.name not in given]
    pairs = [(part, given[part.name]) for part in policy.parts if part.name in given]
    return problems + [
        f"the policy reads {part.name!r} as {part.kind} of {_describe_part(part)}, "
        f"the environment gives {other.kind} of {_describe_part(other)}"
        for part, other in pairs
        if (part.kind, _describe_part(part)) != (other.kind, _describe_part(other))
    ]


def _describe_part(part: Part) -> str:
    symbols = f" with {format_sizes(part.symbols)} symbols" if part.symbols else ""
    return (format_sizes(part.shape) or "one number") + symbols


def _compare_actions(policy: EnvSpec, environment: EnvSpec) -> list[str]:
    problems = []
    expected, got = (describe_actions(spec) for spec in (policy, environment))
    if expected != got:
        problems.append(f"the policy has {expected}, the environment {got}")
    if policy.action_names and environment.action_names:
        problems += _compare_names(policy.action_names, environment.action_names)
    return problems


def _compare_names(policy: tuple[str, ...], environment: tuple[str, ...]) -> list[str]:
    missing = [name for name in policy if name not in environment]
    new = [name for name in environment if name not in policy]
    problems = [f"the environment has no action {', '.join(missing)}"] if missing else []
    problems += [f"the policy has no action {', '.join(new)}"] if new else []
    if not problems and policy != environment:
        pairs = enumerate(zip(policy, environment, strict=False))
        index, (ours, theirs) = next(pair for pair in pairs if pair[1][0] != pair[1][1])
        problems.append(f"action {index} is {ours} for the policy and {theirs} for the environment")
    return problems


class FeatureMap(nn.Module):
    """Maps an environment's tokens [..., 3] to the policy's feature ids, by name. Unknown features become padding.

    Values are unchanged: the policy divides them by the normalisations it was trained with, so that a value keeps its
    meaning.
    """

    table: Tensor

    def __init__(self, policy: Sequence[Feature], environment: Sequence[Feature]) -> None:
        super().__init__()
        policy_ids = {feature.name: feature.id for feature in policy}
        table = torch.full((256,), PADDING, dtype=torch.uint8)
        for feature in environment:
            table[feature.id] = policy_ids.get(feature.name, PADDING)
        self.register_buffer("table", table, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        ids = self.table[tokens[..., 1].long()]
        mapped = torch.stack([tokens[..., 0], ids, tokens[..., 2]], dim=-1)
        return mapped.masked_fill((ids == PADDING).unsqueeze(-1), PADDING)


def make_feature_map(policy: Sequence[Feature], environment: Sequence[Feature]) -> FeatureMap | None:
    """The map between the two; None if the ids agree already."""
    policy_ids = {feature.name: feature.id for feature in policy}
    if all(policy_ids.get(feature.name) == feature.id for feature in environment):
        return None
    return FeatureMap(policy, environment)


def unknown_features(policy: Sequence[Feature], environment: Sequence[Feature]) -> list[Feature]:
    """The environment's features that the policy does not have."""
    names = {feature.name for feature in policy}
    return [feature for feature in environment if feature.name not in names]


def read_features(features: Features) -> tuple[Feature, ...]:
    """Validated features from either form. The default normalisation is 255, the largest byte."""
    if isinstance(features, Mapping):
        features = [
            Feature(int(entry["id"]), name, float(entry.get("normalization", 255.0)))
            for name, entry in features.items()
        ]
    by_name: dict[str, Feature] = {}
    by_id: dict[int, Feature] = {}
    for feature in features:
        if not 0 <= feature.id < PADDING:
            raise UserError(f"features: {feature.name} has the id {feature.id}, expected 0 to {PADDING - 1}")
        other = by_id.setdefault(feature.id, feature)
        if other is not feature:
            raise UserError(
                f"features: {other.name} and {feature.name} have the same id, {feature.id}: change one of them"
            )
        if by_name.setdefault(feature.name, feature) is not feature:
            raise UserError(f"features: two are named {feature.name}: names must be unique, rename one")
    return tuple(features)


def with_new_features(spec: EnvSpec, features: Sequence[Feature]) -> EnvSpec:
    """The spec with its missing features appended.

    Existing features keep their ids and normalisations; a new one keeps its id if that is free.
    """
    grown = list(spec.features)
    taken = {feature.id for feature in grown}
    for feature in unknown_features(spec.features, features):
        free = next((number for number in (feature.id, *range(PADDING)) if number not in taken), None)
        if free is None:
            raise UserError(f"features: no id is free for {feature.name}: a policy can have {PADDING} features at most")
        taken.add(free)
        grown.append(Feature(free, feature.name, feature.normalization))
    return spec.with_features(tuple(grown))


def load_weights(policy: Policy, state: Mapping[str, Tensor], spec: EnvSpec) -> None:
    """Load the state dict of a policy made for `spec` into one made for more features.

    The weights of new features (an input channel, a row of an embedding) keep their fresh values.
    """
    old, new = (tuple(feature.name for feature in features) for features in (spec.features, policy.env_spec.features))
    if new[: len(old)] != old:
        raise UserError(
            "load_weights: the policy must have the old features in their old order, followed by the new ones: "
            "make it for with_new_features(old_spec, features)"
        )
    fresh = policy.state_dict()
    sizes = (len(old), len(new))
    loaded = {name: _grow(name, tensor, _fresh_tensor(name, fresh), sizes) for name, tensor in state.items()}
    policy.load_state_dict(loaded)


def _fresh_tensor(name: str, fresh: Mapping[str, Tensor]) -> Tensor | None:
    """The new policy's tensor of this name. A copy kept by the L2-init loss starts from the weight itself."""
    if name not in fresh and name.startswith("l2_init."):
        name = name.removeprefix("l2_init.").replace("/", ".")
    return fresh.get(name)


def _grow(name: str, tensor: Tensor, fresh: Tensor | None, sizes: tuple[int, int]) -> Tensor:
    """The old tensor in the corner of the fresh one. Only dimensions of one entry per feature may differ."""
    if fresh is None or fresh.shape == tensor.shape:
        return tensor
    pairs = list(zip(tensor.shape, fresh.shape, strict=False))
    if tensor.dim() != fresh.dim() or any(old != new and (old, new) != sizes for old, new in pairs):
        raise UserError(
            f"load_weights: {name} was {list(tensor.shape)} and is now {list(fresh.shape)}: only dimensions of one "
            f"entry per feature can grow, from {sizes[0]} to {sizes[1]}"
        )
    grown = fresh.clone()
    grown[tuple(slice(old) for old, _ in pairs)] = tensor.to(grown)
    return grown
