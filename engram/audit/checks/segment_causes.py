"""Why learning differs from acting in a segment without memory from before and without episode starts."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from engram.audit.adapters.base import PolicyAdapter, PolicyOutput, Segment
from engram.audit.checks.stored_memory import scaled_when_read, scaled_when_stored, swapped_when_stored
from engram.audit.context import AuditContext
from engram.audit.difference import EXACT, abs_difference, max_difference, tolerance
from engram.audit.result import attempt
from engram.audit.scenario import PlayedRollout, play, random_observations

Calls = dict[str, tuple[Tensor, Tensor]]  # the first inputs and outputs of each layer, by its name
STEPS = 6
SMALL_PART = 0.02  # of the size of outputs: what a lower precision changes at most
OTHER_DISTRIBUTION = "the distribution over actions differs between acting and learning; values do not"
OTHER_VALUE = "the value in learning is not computed as in acting; log-probabilities are"
ONE_MEMORY = (
    "acting stores the memory that {} is computed from differently than learning carries it from step to step; {}"
)
FIRST_STEP = "outputs differ between acting and learning even without memory: inputs, features or heads differ"
READ = "learning reads the same memory differently than acting: positions, masks or scales of what is remembered differ"
STORED = "acting stores something else than the memory that learning carries from step to step"


@torch.no_grad()
def simple_segment(audit: AuditContext) -> str:
    """The cause, found in a segment without memory from before and without episode starts."""
    scenario = audit.scenario(76, steps=STEPS)
    played = play(audit.adapter(own_mode=True), scenario)
    learned = audit.adapter(own_mode=True).learn(scenario.segment(played.actions))
    if cause := next(_rearranged(played, learned), ""):
        return cause
    bound = tolerance(played.value, played.log_prob)
    value, log_prob = (
        abs_difference(getattr(learned, name), getattr(played, name)) > bound for name in ("value", "log_prob")
    )
    if not bool(value.any()):
        cause = next(_wrong_log_prob(played, learned), "")
        if cause == OTHER_DISTRIBUTION and not bool(log_prob[:, 0].any()):
            return ONE_MEMORY.format("the action distribution", "that of the value agrees")
        layer = attempt(_first_difference, audit) if cause == OTHER_DISTRIBUTION else ""
        return f"{cause}: {layer}" if layer else cause
    if not bool(log_prob.any()):
        if not bool(value[:, 0].any()):
            return ONE_MEMORY.format("the value", "that of the action distribution agrees")
        layer = attempt(_first_difference, audit)
        return OTHER_VALUE + (f": {layer}" if layer else "")
    if cause := _reads_its_action(audit) or _steps_twice(audit):
        return cause
    if bool((value | log_prob)[:, 0].any()):
        return attempt(_first_difference, audit) or FIRST_STEP
    if cause := ignores_steps(audit) or _by_position(audit) or swapped_when_stored(audit) or _reads_otherwise(audit):
        return cause
    return attempt(scaled_when_stored, audit) or f"{STORED}: one of the two skips, scales, clamps or resets it"


def _reads_its_action(audit: AuditContext) -> str:
    """Whether the value or the distribution of a step depends on the action that is judged at that step."""
    segment, adapter = audit.segment(89, steps=3), audit.adapter()
    actions = segment.actions.clone()
    actions[:, -1] = actions[:, -1].roll(1, 0) if actions.is_floating_point() else 1 - actions[:, -1].clamp(max=1)
    one, other = (adapter.learn(each) for each in (segment, replace(segment, actions=actions)))
    if max_difference(one.value[:, -1], other.value[:, -1]) <= tolerance(one.value):
        return ""
    return "in learning, the value and the distribution of a step depend on the action that is judged there"


def _steps_twice(audit: AuditContext) -> str:
    """Whether one of the two advances the memory twice for each observation."""
    scenario = audit.scenario(76, steps=3)
    twice = replace(
        scenario,
        observations=scenario.observations.repeat_interleave(2, 1),
        dones=scenario.dones.repeat_interleave(2, 1),
        truncateds=scenario.truncateds.repeat_interleave(2, 1),
        noise=scenario.noise.repeat_interleave(2, 1),
    )
    values = {}
    for name, each in (("once", scenario), ("twice", twice)):
        played = play(audit.adapter(), each)
        values[name] = played.value, audit.adapter().learn(each.segment(played.actions)).value
    (acted, learned), (acted_twice, learned_twice) = values["once"], values["twice"]
    if max_difference(acted, learned_twice[:, 1::2]) <= tolerance(acted):
        return "acting advances the memory twice for each observation"
    if max_difference(learned, acted_twice[:, 1::2]) <= tolerance(acted):
        return "learning advances the memory twice for each observation"
    return ""


def _by_position(audit: AuditContext) -> str:
    """Whether the same step, at the start of an episode, gives different outputs at another position in a segment."""
    segment, adapter = audit.segment(89, steps=4), audit.adapter()
    started = replace(segment, dones=torch.ones_like(segment.dones))
    whole = adapter.learn(started).numbers()
    alone = torch.cat([adapter.learn(started.steps(step, step + 1)).numbers() for step in range(4)], 1)
    if max_difference(whole, alone) <= tolerance(whole):
        return ""
    return "in learning, outputs depend on the position in the segment, which acting does not know"


def ignores_steps(audit: AuditContext) -> str:
    """Steps of a segment whose own observation does not matter in learning."""
    segment, adapter = audit.segment(89, steps=STEPS), audit.adapter()
    base, ignored = adapter.learn(segment).numbers(), []
    for step in range(STEPS):
        other = _with_other_step(audit, segment, step)
        if max_difference(adapter.learn(other).numbers()[:, step], base[:, step]) <= tolerance(base):
            ignored.append(str(step))
    if not ignored or len(ignored) == STEPS:
        return ""
    return f"learning skips steps: the observations at step {', '.join(ignored)} of {STEPS} do not reach their outputs"


@torch.no_grad()
def looks_back(audit: AuditContext, steps: int) -> str:
    """The cause if acting and learning depend on observations of different numbers of steps back."""
    scenario, adapter = audit.scenario(88, rows=2, steps=steps), audit.adapter()
    played = play(audit.adapter(), scenario)
    segment = scenario.segment(played.actions)
    learned, reach = adapter.learn(segment).value[:, -1], {"acting": 0, "learning": 0}
    for step in range(steps):
        other = _with_other_step(audit, segment, step)
        acted = play(audit.adapter(), replace(scenario, observations=other.observations)).value[:, -1]
        if max_difference(acted, played.value[:, -1]) > EXACT:
            reach["acting"] = max(reach["acting"], steps - 1 - step)
        if max_difference(adapter.learn(other).value[:, -1], learned) > EXACT:
            reach["learning"] = max(reach["learning"], steps - 1 - step)
    if abs(reach["acting"] - reach["learning"]) < 2:
        return ""
    short, long = sorted(reach, key=lambda kind: reach[kind])
    return f"{short} remembers only {reach[short]} steps back, {long} {reach[long]} and more"


def _with_other_step(audit: AuditContext, segment: Segment, step: int) -> Segment:
    observations = segment.observations.clone()
    observations[:, step] = random_observations(audit.spec, segment.shape, audit.generator(90 + step))[:, step]
    return replace(segment, observations=observations)


def _reads_otherwise(audit: AuditContext) -> str:
    """Whether learning and acting give different outputs from the same memory, as acting stored it."""
    scenario, adapter = audit.scenario(76, steps=3), audit.adapter()
    if not adapter.learns_row_subsets:
        return ""
    play(adapter, scenario.part(0, 1))
    memory = adapter.memory_of(audit.ids)
    after = scenario.part(1)
    played = play(adapter, after)
    learned = adapter.learn(after.segment(played.actions), memory)
    if memory is None or max_difference(learned.value[:, 0], played.value[:, 0]) <= tolerance(played.value):
        return ""
    return attempt(scaled_when_read, audit) or READ


def _rearranged(played: PlayedRollout, learned: PolicyOutput) -> Iterator[str]:
    """The causes if learning gives the outputs of different rows or steps."""
    for what, acted, replayed in (
        ("outputs", played.value, learned.value),
        ("values", played.value, learned.value),
        ("log-probabilities", played.log_prob, learned.log_prob),
    ):
        bound = tolerance(acted)
        if what == "outputs" and max_difference(played.log_prob, learned.log_prob) <= bound:
            continue
        if max_difference(acted, replayed) <= bound:
            continue
        sources = [_equal_row(replayed[row], acted, bound) for row in range(len(acted))]
        if all(source is not None for source in sources):
            row = next(i for i, source in enumerate(sources) if source != i)
            yield f"in learning, rows are permuted: row {row} gets the {what} of row {sources[row]}"
        for shift in (1, -1):
            if max_difference(replayed[:, 1:-1], acted.roll(shift, 1)[:, 1:-1]) <= bound:
                late, other = ("learning", "acting") if shift == 1 else ("acting", "learning")
                yield f"{late} is one step late: each step gets the {what} that {other} has at the step before"


def _equal_row(numbers: Tensor, acted: Tensor, bound: float) -> int | None:
    return next((row for row in range(len(acted)) if max_difference(numbers, acted[row]) <= bound), None)


def _wrong_log_prob(played: PlayedRollout, learned: PolicyOutput) -> Iterator[str]:
    """The cause if values agree and log-probabilities do not."""
    full = learned.full
    width = 0 if full is None else full.shape[-1]
    acted = played.numbers[..., 1 : 1 + width]
    if full is None or acted.shape != full.shape:
        yield "log-probabilities differ between acting and learning; values do not"
        return
    if max_difference(acted, full) <= tolerance(acted):
        yield "the log-probability in learning is not that of the action taken at the same step"
        return
    ours, theirs = (logits - logits.mean(-1, keepdim=True) for logits in (acted, full))
    ratio = float((ours * theirs).sum() / ours.square().sum().clamp(min=EXACT))
    if max_difference(ratio * ours, theirs) <= 10 * tolerance(theirs):
        yield f"logits in learning are {ratio:.3g} times those in acting: a temperature in one of the two"
        return
    yield OTHER_DISTRIBUTION


@torch.no_grad()
def _first_difference(audit: AuditContext) -> str:
    """The first layer with other inputs or outputs in learning than in acting; empty if there is none.

    A segment of one step is compared, and if that is right, the first of two steps.
    """
    return next((found for steps in (1, 2) if (found := _difference_of_layers(audit, steps))), "")


def _difference_of_layers(audit: AuditContext, steps: int) -> str:
    scenario = audit.scenario(76, steps=steps)
    acting, learning = audit.adapter(own_mode=True), audit.adapter(own_mode=True)
    acted, learned = _record(acting), _record(learning)
    played = play(acting, scenario)
    replayed = learning.learn(scenario.segment(played.actions))
    apart, apart_in_log_prob = (
        max_difference(getattr(played, name)[:, 0], getattr(replayed, name)[:, 0]) for name in ("value", "log_prob")
    )
    if max(apart, apart_in_log_prob) <= tolerance(played.value):
        return ""
    when = ", even in the first step" if steps == 1 else ", in segments of several steps"
    slightly = 0 < apart <= SMALL_PART * float(played.value.abs().max())
    how = ", slightly: as with a lower precision in one of the two" if slightly else ""
    for name in [name for name in acted if name in learned]:
        (given, out), (given_too, out_too) = acted[name], learned[name]
        if _differ(given, given_too, audit.rows, steps):
            return f"what {name} is given differs between acting and learning{how}{when}"
        if _differ(out, out_too, audit.rows, steps):
            return f"{name} computes something else in learning than in acting{how}{when}"
    return f"what is made of the last layer's outputs differs between acting and learning{how}{when}"


def _record(adapter: PolicyAdapter) -> Calls:
    """Hooks that record the first call of every layer. The result is empty until the policy is called."""
    calls: Calls = {}

    def hook(name: str) -> object:
        def keep(layer: nn.Module, given: tuple, out: object) -> None:
            first = out[0] if isinstance(out, tuple) else out
            if given and isinstance(given[0], Tensor) and isinstance(first, Tensor) and name not in calls:
                calls[name] = given[0].float().flatten(), first.float().flatten()

        return keep

    for name, layer in adapter.policy.named_modules():
        if name and not isinstance(layer, nn.Sequential):
            layer.register_forward_hook(hook(name))
    return calls


def _differ(acted: Tensor, learned: Tensor, rows: int, steps: int) -> bool:
    """Whether a layer's tensor for the first step differs: from acting, and from learning in [B, T] or [T, B]."""
    if len(learned) != steps * len(acted) or len(acted) % rows:
        return len(learned) != len(acted) or max_difference(acted, learned) > tolerance(acted)
    layouts = learned.view(rows, steps, -1)[:, 0], learned.view(steps, rows, -1)[0]
    return all(max_difference(acted.view(rows, -1), each) > tolerance(acted) for each in layouts)
