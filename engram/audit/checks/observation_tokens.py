"""Tokens: does every kind of observation reach the outputs?"""

import torch
from torch import Tensor

from engram.agent.actions import MEAN_NOISE, make_actions
from engram.audit.adapters.base import ActingBatch, PolicyAdapter
from engram.audit.context import AuditContext
from engram.audit.difference import abs_difference
from engram.audit.result import Check, DoesNotApplyError, Verdict
from engram.env.spec import EMPTY_LOCATION, GLOBAL_LOCATION, Feature

PLACES = 4  # locations at which each token is tried


@torch.no_grad()
def observation(audit: AuditContext) -> Verdict:
    """One token alone in view: a different value, or its absence, must change the outputs."""
    if audit.spec.observation_kind != "tokens":
        raise DoesNotApplyError("for token observations only")
    features, adapter = audit.spec.features[:32], audit.adapter()
    unseen = [feature.name for feature in features if not _matters(adapter, _values(audit, feature))]
    corner = _matters(adapter, _presence(audit, 0x00))
    about_agent = _matters(adapter, _presence(audit, GLOBAL_LOCATION))
    problems = []
    if unseen:
        problems.append(f"the value of {', '.join(unseen[:6])} makes no difference")
    if not corner:
        problems.append(f"a token of {features[0].name} in the corner cell (0, 0) makes no difference")
    if not about_agent:
        problems.append("tokens about the agent itself (location 0xFE) make no difference")
    finding = (
        "; ".join(problems)
        or f"values of all {len(features)} features, the corner cell and the agent's own tokens are seen"
    )
    return Verdict(not problems, len(problems), 0, finding, fix=_fix(unseen, corner, about_agent))


def _matters(adapter: PolicyAdapter, pairs: tuple[Tensor, Tensor]) -> bool:
    """Whether the two observations of any pair give different outputs."""
    outputs, width = [], make_actions(adapter.spec).noise
    for tokens in pairs:
        none = torch.zeros(len(tokens), dtype=torch.bool)
        noise = torch.full((len(tokens), width), MEAN_NOISE)
        adapter.reset()
        torch.manual_seed(0)
        outputs.append(adapter.act(ActingBatch(tokens, none, none.clone(), noise)).numbers())
    return bool(abs_difference(outputs[0], outputs[1]).max() > 0)


def _values(audit: AuditContext, feature: Feature) -> tuple[Tensor, Tensor]:
    """A small and a large value, both below the feature's normalisation: an integer division would make both 0."""
    one, other = _blank(audit), _blank(audit)
    large = min(max(int(feature.normalization) - 1, 2), 255)
    for view, value in ((one, 1), (other, large)):
        view[:, 0] = torch.stack(
            [_locations(audit), torch.full((PLACES,), feature.id), torch.full((PLACES,), value)], -1
        )
    return one, other


def _presence(audit: AuditContext, location: int) -> tuple[Tensor, Tensor]:
    """Observations with the first feature at this location, and empty ones."""
    feature = audit.spec.features[0]
    there = _blank(audit)
    for number in range(PLACES):
        value = min(int(feature.normalization) + number, 255) or 1  # not 0, which is like no token
        there[number, 0] = torch.tensor([location, feature.id, value])
    return there, _blank(audit)


def _locations(audit: AuditContext) -> Tensor:
    height, width = audit.spec.window  # a location is 16 * row + column
    return torch.tensor([(n * 2 + 1) % height * 16 + (n + 1) % width for n in range(PLACES)])


def _blank(audit: AuditContext) -> Tensor:
    shape = (PLACES, *audit.spec.all_parts[0].shape)
    return torch.full(shape, EMPTY_LOCATION, dtype=torch.uint8)


def _fix(unseen: list[str], corner: bool, about_agent: bool) -> str:
    advice = []
    if unseen:
        advice.append(
            "Divide values by their normalisation as floats, value.float() / normalisation: bytes truncate to 0."
        )
    if not corner:
        advice.append("Do not let empty tokens write a 0 to feature 0, cell (0, 0): drop them before scattering.")
    if not about_agent:
        advice.append("Give tokens at 0xFE a place too, such as the agent's own cell.")
    return " ".join(advice)


CHECKS = (
    Check(
        "observation_tokens",
        "Does every kind of token reach the outputs: values, the corner cell, tokens about the agent itself?",
        "The policy is blind to a part of its world, and learns as if that part were not there.",
        "Decode tokens as engram/agent/encoders/tokens.py does.",
        ("encode_observations", "forward"),
        observation,
        needs_learning=False,
    ),
)
