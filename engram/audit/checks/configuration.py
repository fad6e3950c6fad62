"""Configuration: do options reach the policy and take effect, and do weights stay in their range?"""

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from engram.agent.policies.base import Policy
from engram.agent.weights import weight_layers
from engram.audit.checks.gradient_health import train_briefly
from engram.audit.context import AuditContext
from engram.audit.result import Check, Verdict
from engram.audit.retained import copy_policy

CLIP_RANGE = 0.05
MISTYPED = "clip_rnge"


def configuration(audit: AuditContext) -> Verdict:
    problems = list(_ignored_options(audit)) if audit.takes_options else list(_missing_attributes(audit.policy))
    problems += list(_l2_init(audit.adapter(original_weights=True).policy))
    finding = "; ".join(problems) or "clip_range and analyze_weights_interval arrive and act; unknown options are named"
    return Verdict(not problems, len(problems), 0, finding)


def _missing_attributes(policy: Any) -> Iterator[str]:
    for name in ("clip_range", "analyze_weights_interval"):
        if getattr(policy, name, None) is None:
            yield f"the policy has no {name}"
    if not callable(getattr(policy, "clip_weights", None)):
        yield "the policy has no clip_weights(), which training calls after every update"


def _ignored_options(audit: AuditContext) -> Iterator[str]:
    try:
        policy: Any = audit.make(clip_range=CLIP_RANGE, analyze_weights_interval=7)
    except TypeError as error:
        yield f"the constructor does not take the options: {error}"
        return
    yield from _missing_attributes(policy)
    for name, given in (("clip_range", CLIP_RANGE), ("analyze_weights_interval", 7)):
        got = getattr(policy, name, None)
        if got is not None and got != given:
            yield f"{name}={given} was given, and the policy has {got}"
    if callable(getattr(policy, "clip_weights", None)) and _outside(policy, CLIP_RANGE, clip=True):
        yield f"clip_weights() with clip_range={CLIP_RANGE} leaves weights outside"
    if isinstance(policy, Policy):
        yield from _unknown_option(audit)


def _unknown_option(audit: AuditContext) -> Iterator[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            audit.make(**{MISTYPED: 0.1})
        except Exception as error:  # to refuse an option is to notice it
            if "clip_range" in str(error) or MISTYPED in str(error):
                return
            raise
    if not any("clip_range" in str(warning.message) for warning in caught):
        yield f"a mistyped option ({MISTYPED}) is ignored without a warning"


def _l2_init(policy: Any) -> Iterator[str]:
    """The L2-init loss must have a gradient."""
    if not callable(getattr(policy, "l2_init_loss", None)):
        return
    policy.l2_init_loss()  # the first call copies the initial weights
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1)
    loss = policy.l2_init_loss()
    if not isinstance(loss, Tensor) or not loss.requires_grad:
        yield "l2_init_loss() has no gradient, so it pulls nothing back"


def weight_clipping(audit: AuditContext) -> Verdict:
    """A few large updates, each followed by clip_weights()."""
    policy = _with_clip_range(audit)
    if not callable(getattr(policy, "clip_weights", None)):
        return Verdict(False, None, CLIP_RANGE, "the policy has no clip_weights()")

    def after(_: int) -> None:
        policy.clip_weights()

    train_briefly(audit, audit.adapt_like_original(policy), updates=3, learning_rate=0.05, after=after)
    outside = _outside(policy, CLIP_RANGE)
    size = max([float(value) for value in outside.values()], default=CLIP_RANGE)
    finding = (
        f"after 3 updates and clip_weights() with clip_range={CLIP_RANGE}, all Linear, Conv and recurrent weights are "
        "within"
    )
    if outside:
        named = ", ".join(f"{name} ({value:.2g})" for name, value in list(outside.items())[:4])
        finding = f"{len(outside)} weights are outside ±{CLIP_RANGE} after clip_weights(): {named}"
    return Verdict(not outside, size, CLIP_RANGE, finding, where=next(iter(outside), ""))


def _with_clip_range(audit: AuditContext) -> Any:
    """The policy with a clip range, set when it is built if possible, otherwise later."""
    if audit.takes_options:
        try:
            return audit.make(clip_range=CLIP_RANGE)
        except TypeError:  # which the check `configuration` reports
            pass
    policy: Any = copy_policy(audit.policy, audit.policy)
    policy.clip_range = CLIP_RANGE
    return policy


@torch.no_grad()
def _outside(policy: nn.Module, limit: float, clip: bool = False) -> dict[str, float]:
    """Weights beyond the limit of their layer, and how large they are."""
    if clip:
        policy.clip_weights()  # type: ignore[operator]
    options = policy.weight_options if isinstance(policy, Policy) else {}
    found = {}
    for layer in weight_layers(policy, options):
        for name, parameter in layer.parameters.items():
            size = float(parameter.abs().max()) if parameter.numel() else 0.0
            if not size <= limit * layer.options.clip_scale * (1 + 1e-5):
                found[name] = size
    return found


CHECKS = (
    Check(
        "configuration",
        "Do clip_range, analyze_weights_interval and other options arrive, and are mistyped ones noticed?",
        "Runs differ only on paper: an option that does not arrive is a setting nobody trained with.",
        "Take **kwargs in __init__ and hand them on: super().__init__(env, …, **kwargs). LSTMWrapper keeps clip_range "
        "and analyze_weights_interval, clips, and warns of what nothing uses.",
        ("__init__", "clip_weights", "l2_init_loss"),
        configuration,
        td_only=True,
        needs_learning=False,
    ),
    Check(
        "weight_clipping",
        "Do Linear, Conv and recurrent weights stay within clip_range after real updates?",
        "Weights that should be clipped keep growing, the LSTM's first, and gradients grow with them.",
        "Clamp the weights and biases of every Linear, Conv and recurrent layer (weight_ih_l0, weight_hh_l0, …) in "
        "clip_weights(). LSTMWrapper.clip_weights does.",
        ("clip_weights",),
        weight_clipping,
        td_only=True,
    ),
)
