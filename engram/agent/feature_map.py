"""Features by name: how a policy reads an environment that gives its features other numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from engram.env.spec import EMPTY_LOCATION, Feature
from engram.settings import UserError

PADDING = EMPTY_LOCATION  # in all three bytes of a token that says nothing

Features = Mapping[str, Mapping[str, Any]] | Sequence[Feature]  # name -> {"id": 3, "normalization": 10.0}, or ready


class FeatureMap(nn.Module):
    """Tokens [..., 3] of an environment to tokens of a policy: its own id for every feature it knows by name, and
    padding in place of those it does not know.

    Values stay as they are, and the policy divides them by its own normalisations, those it was trained with: a value
    must mean to it what it meant then, whatever another environment finds a good scale.
    """

    table: Tensor

    def __init__(self, of_policy: Sequence[Feature], of_environment: Sequence[Feature]) -> None:
        super().__init__()
        own = {feature.name: feature.id for feature in of_policy}
        table = torch.full((256,), PADDING, dtype=torch.uint8)
        for feature in of_environment:
            table[feature.id] = own.get(feature.name, PADDING)
        self.register_buffer("table", table, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        ids = self.table[tokens[..., 1].long()]
        translated = torch.stack([tokens[..., 0], ids, tokens[..., 2]], dim=-1)
        return translated.masked_fill((ids == PADDING).unsqueeze(-1), PADDING)


def make_feature_map(of_policy: Sequence[Feature], of_environment: Sequence[Feature]) -> FeatureMap | None:
    """The map between the two; None where the policy already reads every token as it is meant."""
    own = {feature.name: feature.id for feature in of_policy}
    if all(own.get(feature.name) == feature.id for feature in of_environment):
        return None
    return FeatureMap(of_policy, of_environment)


def unknown_features(of_policy: Sequence[Feature], of_environment: Sequence[Feature]) -> list[Feature]:
    """What the environment shows and the policy has no place for."""
    own = {feature.name for feature in of_policy}
    return [feature for feature in of_environment if feature.name not in own]


def read_features(features: Features) -> tuple[Feature, ...]:
    """Features from either form, checked. One without a normalisation gets that of a whole byte."""
    if isinstance(features, Mapping):
        features = [
            Feature(int(entry["id"]), name, float(entry.get("normalization", 255.0)))
            for name, entry in features.items()
        ]
    by_name: dict[str, Feature] = {}
    by_id: dict[int, Feature] = {}
    for feature in features:
        if not 0 <= feature.id < PADDING:
            raise UserError(
                f"features: {feature.name} has the id {feature.id}, and a token has room for 0 to {PADDING - 1}"
            )
        twin = by_id.setdefault(feature.id, feature)
        if twin is not feature:
            raise UserError(
                f"features: {twin.name} and {feature.name} have the same id, {feature.id}: give one another"
            )
        if by_name.setdefault(feature.name, feature) is not feature:
            raise UserError(f"features: there are two of the name {feature.name}: a policy knows them by name")
    return tuple(features)
