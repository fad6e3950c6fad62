"""Are the outputs reproducible, and independent of the random seed, the mode and gradients?"""

from contextlib import nullcontext, suppress

import torch
from torch import Tensor, nn

from engram.audit.checks.call_effects import SHARED, changed_by_calls, seeds_generators, shared_by_copies
from engram.audit.context import AuditContext
from engram.audit.difference import max_difference, tolerance
from engram.audit.result import Check, Verdict
from engram.audit.scenario import play, seed_everything


@torch.no_grad()
def determinism(audit: AuditContext) -> Verdict:
    """Outputs must not depend on the seed or on earlier calls; weights and actions must depend on the seed alone."""
    if seeded := seeds_generators(audit):
        cause = f"a call seeds {seeded}: all that is drawn after it repeats"
        return _failure(cause, cause, SEEDS_FIX)
    in_training, in_evaluation = audit.random_outputs, audit.random_in_evaluation  # "acting", "learning", both or ""
    if (in_training or in_evaluation) and (shared := shared_by_copies(audit)):
        return _failure(shared, SHARED, SHARED_FIX)
    if in_training or in_evaluation:
        where = in_training or in_evaluation
        text = f"the policy draws random numbers by itself: the outputs of {where} change with the seed"
        if not in_evaluation:
            text += " in training mode, as with dropout"
        dropout = [name for name, layer in audit.policy.named_modules() if isinstance(layer, nn.Dropout)]
        by = f": dropout ({dropout[0]})" if dropout else ": dropout, noise or a random state"
        cause = f"the policy draws random numbers in {where}{by}"
        return _failure(text, cause, RANDOM_FIX)
    if changed := changed_by_calls(audit):
        return _failure(changed, changed, REPEAT_FIX)
    scenario = audit.scenario(134)
    weights, actions = [], []
    for _ in range(2):
        seed_everything(audit.seed)
        adapter = audit.adapt_like_original(audit.make())
        adapter.fixed_sampling = False
        seed_everything(audit.seed)
        actions.append(play(adapter, scenario).actions)
        weights.append([p.detach().clone() for p in adapter.policy.parameters()])
    other = sum(not torch.equal(a, b) for a, b in zip(*weights, strict=True))
    share = float((actions[0] != actions[1]).float().mean())
    text = f"from the same seed, {share:.0%} of actions and {other} of {len(weights[0])} weight tensors differ"
    return Verdict(share == 0 and other == 0, max(share, float(other)), 0, text)


def _failure(finding: str, cause: str, fix: str) -> Verdict:
    return Verdict(False, finding=finding, cause=cause, fix=fix, fix_without_engram=fix)


def modes(audit: AuditContext) -> Verdict:
    """Outputs must be the same in training and evaluation mode, with and without gradients."""
    if audit.learning_error:
        text = f"the simplest learning call raises {audit.learning_error}"
        return Verdict(False, None, None, text, cause="a learning call raises an error", fix=LEARNING_CALL_FIX)
    audit.needs_repeatable_outputs()
    scenario, segment = audit.scenario(102, end_chance=0.1), audit.segment(103, end_chance=0.1)
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    for name, training, gradients in MODES:
        adapter = audit.adapter()
        adapter.training_mode = training
        with gradients(), suppress(RuntimeError) if name == "inference_mode" else nullcontext():  # it may refuse that
            seed_everything(1)
            seen[name] = play(adapter, scenario).numbers.clone(), adapter.learn(segment).numbers().detach().clone()
    base, bound = seen["train()"], tolerance(*seen["train()"])
    found = {
        f"{what} in {name}": max_difference(seen[name][i], base[i])
        for name in seen
        for i, what in enumerate(("acting", "learning"))
    }
    measured = max(found.values())
    differing = [f"{what} differs from train() by {value:.2g}" for what, value in found.items() if value > bound]
    text = "; ".join(differing) or "acting and learning give the same numbers in train(), eval() and under no_grad"
    cause = ""
    if differing and (causes := _layers_with_modes(audit)):
        text += f", because of {', '.join(causes)}"
        cause = f"train() and eval() differ because of {causes[0]}"
    elif differing:
        cause = _differing_modes({name for name, value in found.items() if value > bound})
    return Verdict(measured <= bound, measured, bound, text, cause=cause)


def _differing_modes(found: set[str]) -> str:
    """What makes outputs differ: the mode, gradients, or both; and whether in acting, in learning, or in both."""
    kinds = [kind for kind in ("acting", "learning") if any(name.startswith(kind) for name in found)]
    modes = {name.partition(" in ")[2] for name in found}
    without_gradient, evaluation = {"no_grad", "eval() with no_grad", "inference_mode"}, {"eval()", *EVAL_ONLY}
    factors = (
        (without_gradient, "with gradients than without"),
        (evaluation, "in eval() than in train()"),
        (EVAL_ONLY, "in eval() with no_grad than otherwise"),
        ({"inference_mode"}, "in inference_mode than otherwise"),
    )
    how = next((text for names, text in factors if modes == names), "")
    if not how:
        return f"outputs differ from those in train() with gradients: {', '.join(sorted(found))}"
    verb = "computes" if len(kinds) == 1 else "compute"
    return f"{' and '.join(kinds)} {verb} something else {how}"


def _layers_with_modes(audit: AuditContext) -> list[str]:
    """The layers that compute something else in training mode, described."""
    effects = {nn.modules.batchnorm._NormBase: "mixes rows", nn.modules.dropout._DropoutNd: "is random"}
    found = [(name, layer, kind) for name, layer in audit.policy.named_modules() for kind in effects]
    return [
        f"{name} ({type(layer).__name__}, which {effects[kind]} in train())"
        for name, layer, kind in found
        if isinstance(layer, kind)
    ][:3]


EVAL_ONLY = {"eval() with no_grad", "inference_mode"}
MODES = (
    ("train()", True, torch.enable_grad),
    ("eval()", False, torch.enable_grad),
    ("no_grad", True, torch.no_grad),
    ("eval() with no_grad", False, torch.no_grad),
    ("inference_mode", False, torch.inference_mode),
)
RANDOM_FIX = (
    "Outputs must be a function of observations, memory and weights: take out dropout (also nn.LSTM(dropout=…)), noise "
    "and random initial states. Only the sampled action may be random."
)
SHARED_FIX = "Keep memory in attributes that __init__ makes (self.memory = {}), or in buffers."
SEEDS_FIX = "Seed random generators once, before training, or draw from a torch.Generator of your own."
REPEAT_FIX = (
    "A call may change nothing but the memory of its rows. Update statistics of observations between rollouts, and use "
    "normalisations that do not depend on the batch (LayerNorm, not BatchNorm)."
)
LEARNING_CALL_FIX = (
    "A learning call is policy(td, action=actions) with a td of batch size [B, T] and observations [B, T, …]: encode "
    "the B * T observations, run the LSTM over [T, B, features], and fill in the td with "
    "self.forward_training(td, action, logits, value)."
)

CHECKS = (
    Check(
        "determinism",
        "Are the outputs the same twice, and does the same seed give the same weights and actions?",
        "Learning compares random numbers with other random numbers, and no run can be repeated.",
        "Draw with torch's generator, which the run seeds, not with NumPy's, Python's, or one of your own.",
        ("forward_inference", "forward", "get_action_and_value"),
        determinism,
        needs_learning=False,
    ),
    Check(
        "modes",
        "Do acting and learning work, and give the same numbers in train(), in eval() and without gradients?",
        "Evaluation shows another policy than the one that is trained, and PPO takes the difference for progress.",
        "Take out what behaves differently in training: dropout (nn.LSTM(dropout=…) too), BatchNorm, and branches on "
        "self.training.",
        ("forward", "get_action_and_value", "evaluate_actions"),
        modes,
        needs_learning=False,
    ),
)
