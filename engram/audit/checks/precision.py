"""Other precisions, the compiler, and chance: the same numbers?"""

# B rows, T steps

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from engram.agent.policies.base import Policy
from engram.audit.adapters.base import PolicyAdapter, Segment
from engram.audit.adapters.td import TdAdapter
from engram.audit.context import AuditContext, describe, max_difference
from engram.audit.result import Check, DoesNotApplyError, Verdict
from engram.audit.scenario import Scenario, play
from engram.audit.source_location import short_path

PLACE = re.compile(r'File "(.+)", line (\d+), in (\S+)')
NO_KERNEL = "could not create a primitive"
BOUNDS = {"float64": 1e-3, "bfloat16 autocast": 0.1}  # how far they may be from float32, for numbers of size 1


@torch.no_grad()
def precision(audit: AuditContext) -> Verdict:
    """Acting and learning in float64, and under bfloat16 autocast, beside float32."""
    scenario, segment = audit.scenario(130, end_chance=0.1), audit.segment(131, end_chance=0.1)
    base = _numbers(audit.adapter(original_weights=True), scenario, segment)
    size = max(1.0, *(float(part.abs().max()) for part in base))
    found: dict[str, float] = {}
    problems: list[str] = []
    notes: list[str] = []
    for name, bound in BOUNDS.items():
        adapter = audit.adapter(original_weights=True)
        try:
            if name == "float64":
                with _default(torch.float64), _inputs_like_weights(adapter.policy):
                    adapter.to(torch.float64)
                    seen = _numbers(adapter, _double(scenario), _double(segment))
            else:
                with torch.autocast("cpu", torch.bfloat16):
                    seen = _numbers(adapter, scenario, segment)
        except Exception as error:
            # Other libraries promise float32 only, and torch has no kernel for everything on every processor.
            excused = not audit.original.uses_td or NO_KERNEL in str(error)
            (notes if excused else problems).append(f"{name} raises {describe(error)}")
            continue
        found[name] = max(max_difference(a.double(), b.double()) for a, b in zip(seen, base, strict=True)) / size
        if found[name] > bound:
            problems.append(f"{name} differs from float32 by {found[name]:.2g}, where {bound:g} is allowed")
    measured = max([value / BOUNDS[name] for name, value in found.items()], default=0.0)
    told = [f"{name} differs by {value:.1g}, {BOUNDS[name]:g} is allowed" for name, value in found.items()]
    if not problems and not told:
        raise DoesNotApplyError("neither could be tried: " + "; ".join(notes))
    said = "; ".join(problems or told)
    return Verdict(not problems, measured, 1.0, said, notes=tuple(notes))


def _numbers(adapter: PolicyAdapter, scenario: Scenario, segment: Segment) -> tuple[Tensor, Tensor]:
    return play(adapter, scenario).numbers, adapter.learn(segment).numbers()


def _double(told: Any) -> Any:
    """Observations in float64, if they are numbers at all."""
    if not told.observations.is_floating_point():
        return told
    return replace(told, observations=told.observations.double())


@contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _inputs_like_weights(policy: nn.Module) -> Iterator[None]:
    """Whoever turns observations into float32 does nothing wrong; memory must have the dtype of the weights."""

    def hook(module: nn.Module, given: tuple) -> tuple:
        weight = next(module.parameters(recurse=False), None)
        if weight is None or not given or not isinstance(given[0], Tensor) or not given[0].is_floating_point():
            return given
        return (given[0].to(weight.dtype), *given[1:])

    handles = [part.register_forward_pre_hook(hook) for part in policy.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def compiles(audit: AuditContext) -> Verdict:
    """Both calls as one graph each, with the numbers they have without."""
    adapter = audit.adapter(original_weights=True)
    assert isinstance(adapter, TdAdapter)
    if isinstance(adapter.policy, Policy):
        adapter.policy.reserve_memory(audit.rows)
    scenario, segment = audit.scenario(132, steps=2, end_chance=0.3), audit.segment(133, steps=3, end_chance=0.3)
    problems, found = [], 0.0
    # Torch's own recurrent layers can be traced; by default its compiler only declines to, for speed.
    with warnings.catch_warnings(), torch._dynamo.config.patch(allow_rnn=True):
        warnings.simplefilter("ignore")
        for name in ("acting", "learning"):
            try:
                found = max(found, _compiled_difference(adapter, name, scenario, segment))
            except Exception as error:
                problems.append(f"{name} does not compile in one graph: {_reason(error)}")
    bound = 1e-4
    if found > bound:
        problems.append(f"compiled, the answers differ by {found:.2g}")
    said = "; ".join(problems) or f"acting and learning compile in one graph each; their numbers differ by {found:.1g}"
    return Verdict(not problems, found if not problems else None, bound, said)


def _compiled_difference(adapter: TdAdapter, name: str, scenario: Scenario, segment: Segment) -> float:
    torch.compiler.reset()
    seen = []
    try:
        for compiled in (None, torch.compile(adapter.policy, fullgraph=True, backend="eager")):
            adapter.reset()
            adapter.compiled = compiled
            if name == "acting":
                with torch.no_grad():
                    seen.append(play(adapter, scenario).numbers)
            else:
                seen.append(adapter.learn(segment).numbers().detach())
        return max_difference(seen[0], seen[1])
    finally:
        adapter.compiled = None
        torch.compiler.reset()


def _reason(error: Exception) -> str:
    """The first lines of what the compiler says, and the line of the policy it stopped at."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    places = [match for line in lines if (match := PLACE.match(line)) and "site-packages" not in line]
    stopped = [f"at {short_path(match[1])}:{match[2]}, in {match[3]}" for match in places]
    told = [line for line in lines if line.startswith(("Explanation:", "Reason:"))] or lines[:1] or [describe(error)]
    return " ".join([*told[:1], *stopped[-1:]])[:500]


@torch.no_grad()
def determinism(audit: AuditContext) -> Verdict:
    """Built twice and played twice from the same seed: the same weights, the same actions."""
    scenario = audit.scenario(134)
    weights, actions = [], []
    for _ in range(2):
        torch.manual_seed(audit.seed)
        adapter = audit.adapt_like_original(audit.make())
        torch.manual_seed(audit.seed)
        actions.append(play(adapter, scenario).actions)
        weights.append([p.detach().clone() for p in adapter.policy.parameters()])
    other = sum(not torch.equal(a, b) for a, b in zip(*weights, strict=True))
    share = float((actions[0] != actions[1]).float().mean())
    said = f"from the same seed, {share:.0%} of actions and {other} of {len(weights[0])} weight tensors differ"
    return Verdict(share == 0 and other == 0, max(share, float(other)), 0, said)


CHECKS = (
    Check(
        "precision",
        "Are the answers the same in float64, and nearly so under bfloat16 autocast?",
        "The policy trains differently, or not at all, on hardware and in modes that use another precision.",
        "Make new tensors like those there are (x.new_zeros(…), torch.zeros(…, dtype=x.dtype)), keep memory in the "
        "dtype of "
        "the weights, and compute log-probabilities in float32 or better.",
        ("_manage_lstm_state", "forward", "encode_observations"),
        precision,
    ),
    Check(
        "compile",
        "Does torch.compile take acting and learning as one graph each, with the same numbers?",
        "Compiled training is slow, because every graph break goes back to Python, or computes something else.",
        "Take sizes from shapes, not from tensors (.item(), int(tensor), td['bptt'][0]), branch on Python values "
        "only, and "
        "remove @torch._dynamo.disable, which hides the breaks.",
        ("forward", "_manage_lstm_state"),
        compiles,
        td_only=True,
    ),
    Check(
        "determinism",
        "Does the same seed give the same weights and the same actions?",
        "No run can be repeated, so neither a bug nor a result can be.",
        "Draw with torch's generator, which the run seeds, not with NumPy's, Python's, or one of your own.",
        ("forward_inference", "forward", "get_action_and_value"),
        determinism,
        needs_learning=False,
    ),
)
