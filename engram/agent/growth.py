"""Growth: a trained policy gets room for features it has not met, and keeps all that it has learned.

spec = with_room_for(old.env_spec, features)  # the old features stay where they are, the new ones follow
policy = Fast(spec)
load_weights(policy, old.state_dict(), old.env_spec)
"""

# K features of a policy

from collections.abc import Mapping, Sequence

from torch import Tensor

from engram.agent.feature_map import PADDING, unknown_features
from engram.agent.policies.base import Policy
from engram.env.spec import EnvSpec, Feature
from engram.settings import UserError


def with_room_for(spec: EnvSpec, features: Sequence[Feature]) -> EnvSpec:
    """The spec with the features it lacks appended. Those it has keep their ids and normalisations; a new one keeps
    its id if that is free."""
    grown = list(spec.features)
    taken = {feature.id for feature in grown}
    for feature in unknown_features(spec.features, features):
        free = [feature.id, *range(PADDING)] if feature.id not in taken else range(PADDING)
        place = next((number for number in free if number not in taken), None)
        if place is None:
            raise UserError(f"features: no id is left for {feature.name}: a policy can tell {PADDING} features apart")
        taken.add(place)
        grown.append(Feature(place, feature.name, feature.normalization))
    return spec.with_features(tuple(grown))


def load_weights(policy: Policy, state: Mapping[str, Tensor], spec: EnvSpec) -> None:
    """Give `policy` the weights `state` of a policy made for `spec`, feature by feature.

    What belongs to a new feature (an input channel, a row of an embedding) keeps the fresh weights it has.
    """
    old, new = (tuple(feature.name for feature in features) for features in (spec.features, policy.env_spec.features))
    if new[: len(old)] != old:
        raise UserError(
            "load_weights: the policy must be made for the old features in their old order, with new ones after them: "
            "use with_room_for(old_spec, features)"
        )
    fresh = policy.state_dict()
    sizes = (len(old), len(new))
    policy.load_state_dict({name: _grow(name, tensor, _begin(name, fresh), sizes) for name, tensor in state.items()})


def _begin(name: str, fresh: Mapping[str, Tensor]) -> Tensor | None:
    """What a saved tensor grows into. A copy that the L2 loss keeps is as large as its weight, and begins with it."""
    if name not in fresh and name.startswith("l2_init."):
        name = name.removeprefix("l2_init.").replace("/", ".")
    return fresh.get(name)


def _grow(name: str, tensor: Tensor, begin: Tensor | None, sizes: tuple[int, int]) -> Tensor:
    """The tensor in the corner of a larger one, where it may be larger only by features."""
    if begin is None or begin.shape == tensor.shape:
        return tensor
    pairs = list(zip(tensor.shape, begin.shape, strict=False))
    if tensor.dim() != begin.dim() or any(old != new and (old, new) != sizes for old, new in pairs):
        raise UserError(
            f"load_weights: {name} was {list(tensor.shape)} and is now {list(begin.shape)}, which {sizes[1]} features "
            f"in place of {sizes[0]} do not explain: only dimensions of one entry per feature can grow"
        )
    grown = begin.clone()
    grown[tuple(slice(old) for old, _ in pairs)] = tensor.to(grown)
    return grown
