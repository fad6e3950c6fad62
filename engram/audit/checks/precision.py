"""Precision and compiler: the same numbers in float64, under autocast, and compiled?"""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from engram.agent.policies.base import Policy
from engram.audit.adapters.base import PolicyAdapter, Segment
from engram.audit.adapters.td import TdAdapter
from engram.audit.context import AuditContext, describe
from engram.audit.difference import max_difference
from engram.audit.result import Check, DoesNotApplyError, Verdict
from engram.audit.scenario import Scenario, play
from engram.audit.source_location import short_path
from engram.audit.weights import double_precision, doubled

PLACE = re.compile(r'File "(.+)", line (\d+), in (\S+)')
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
                with double_precision(adapter):
                    seen = _numbers(adapter, doubled(scenario), doubled(segment))
            else:
                with _without_onednn(), torch.autocast("cpu", torch.bfloat16):
                    seen = _numbers(adapter, scenario, segment)
        except Exception as error:
            # Other libraries promise float32 only. Autocast is a choice, torch has no kernel for everything on every
            # processor, and an error says so by itself.
            excused = not audit.original.uses_td or name != "float64"
            (notes if excused else problems).append(f"{name} raises {describe(error)}")
            continue
        found[name] = max(max_difference(a.double(), b.double()) for a, b in zip(seen, base, strict=True)) / size
        if found[name] > bound:
            problems.append(f"{name} differs from float32 by {found[name]:.2g}, where {bound:g} is allowed")
    measured = max([value / BOUNDS[name] for name, value in found.items()], default=0.0)
    differences = [f"{name} differs by {value:.1g}, {BOUNDS[name]:g} is allowed" for name, value in found.items()]
    if not problems and not differences:
        raise DoesNotApplyError("neither could be tried: " + "; ".join(notes))
    finding = "; ".join(problems or differences)
    return Verdict(not problems, measured, 1.0, finding, notes=tuple(notes))


def _numbers(adapter: PolicyAdapter, scenario: Scenario, segment: Segment) -> tuple[Tensor, Tensor]:
    return play(adapter, scenario).numbers, adapter.learn(segment).numbers()


@contextmanager
def _without_onednn() -> Iterator[None]:
    """oneDNN's bfloat16 kernels crash on machines that announce AMX and do not have it."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def compiles(audit: AuditContext) -> Verdict:
    """Both calls as one graph each, with the numbers they have without."""
    adapter = audit.adapter(original_weights=True)
    adapter.fixed_sampling = False
    assert isinstance(adapter, TdAdapter)
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
        problems.append(f"compiled, the outputs differ by {found:.2g}")
    finding = "; ".join(problems) or f"acting and learning compile in one graph each; outputs differ by {found:.1g}"
    return Verdict(not problems, found if not problems else None, bound, finding)


def _compiled_difference(adapter: TdAdapter, name: str, scenario: Scenario, segment: Segment) -> float:
    torch.compiler.reset()
    seen = []
    try:
        for compiled in (None, torch.compile(adapter.policy, fullgraph=True, backend="eager")):
            adapter.reset()
            if isinstance(adapter.policy, Policy):
                adapter.policy.reserve_memory(scenario.rows)
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
    """The first lines of the compiler's error, and the line of the policy it stopped at."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    places = [match for line in lines if (match := PLACE.match(line)) and "site-packages" not in line]
    stopped = [f"at {short_path(match[1])}:{match[2]}, in {match[3]}" for match in places]
    reasons = [line for line in lines if line.startswith(("Explanation:", "Reason:"))] or lines[:1] or [describe(error)]
    return " ".join([*reasons[:1], *stopped[-1:]])[:500]


CHECKS = (
    Check(
        "precision",
        "Are the outputs the same in float64, and nearly so under bfloat16 autocast?",
        "The policy trains differently, or not at all, on hardware and in modes that use another precision.",
        "Make new tensors like those there are (x.new_zeros(…), torch.zeros(…, dtype=x.dtype)), keep memory in the "
        "dtype of the weights, and compute log-probabilities in float32 or better.",
        ("_manage_lstm_state", "forward", "encode_observations"),
        precision,
    ),
    Check(
        "compile",
        "Does torch.compile take acting and learning as one graph each, with the same numbers?",
        "Compiled training is slow, because every graph break goes back to Python, or computes something else.",
        "Take sizes from shapes, not from tensors (.item(), int(tensor), td['bptt'][0]), branch on Python values "
        "only, and remove @torch._dynamo.disable, which hides the breaks.",
        ("forward", "_manage_lstm_state"),
        compiles,
        td_only=True,
    ),
)
