"""The summary of a run: its length, whether its return needs memory, its diagnosis, and the commands to run next."""

import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from engram.diagnosis import Diagnosis, Finding
from engram.display.formatting import clock, count, plural, score
from engram.env.spec import EnvSpec

if TYPE_CHECKING:
    from engram.training.run import RunPlan, RunResult


WIDTH = 100
NextSteps = Callable[[int], Sequence[str]]  # number of steps done -> commands to offer

# By chance, the mean return of 200 episodes may exceed the ceiling by this fraction of the distance from the ceiling to
# the goal: as for coin tosses, with a ceiling of 1/2 and a goal of 1.
NOISE = 0.2


def summary(result: "RunResult", trained: bool) -> list[str]:
    """The lines about a result; `trained` is false if the run was complete before it was started."""
    lines = [_length(result, trained), verdict(result.mean_return, result.env)]
    if result.checkpoint is not None:
        lines.append(f"Checkpoint: {result.checkpoint}")
    return [*lines, *_findings(result)]


def _findings(result: "RunResult") -> list[str]:
    if result.diagnosis is None or not result.diagnosis.findings:
        return []
    return ["", "Diagnosis:", *(f"  {line}" for line in diagnosis_lines(result.diagnosis))]


def explain_last_batch(plan: "RunPlan") -> str | None:
    """The explanation if a run plays more steps than `total_timesteps`, else None."""
    if plan.steps_at_end <= max(plan.total_timesteps, plan.steps_done):
        return None
    sizes = plan.sizes
    batch = f"{count(sizes.batch_size)} steps ({plural(sizes.segments, 'segment')} of {sizes.horizon})"
    return (
        f"{count(plan.steps_at_end)} steps will be played, not {count(plan.total_timesteps)}: "
        f"batches have {batch}, and the last one is played to its end"
    )


def offer(next_steps: Sequence[str]) -> list[str]:
    """The lines that offer commands to run next."""
    return ["", "Next:", *(f"  {step}" for step in next_steps)] if next_steps else []


def no_next_steps(_: int) -> Sequence[str]:
    """Offer no commands."""
    return ()


def memory_threshold(env: EnvSpec) -> float | None:
    """Returns above this need memory: the ceiling of memoryless policies plus noise, or None if it is unknown."""
    ceiling, goal = env.memoryless_ceiling, env.mean_return_goal
    if ceiling is None or goal is None:
        return ceiling
    return ceiling + NOISE * (goal - ceiling)


def verdict(mean_return: float | None, env: EnvSpec) -> str:
    """One sentence that compares the return with the ceiling of memoryless policies."""
    ceiling, threshold, goal = env.memoryless_ceiling, memory_threshold(env), env.mean_return_goal
    if mean_return is None:
        return "No episode has ended yet, so there is no return: train for longer."
    at_best = "" if goal is None else f" The best possible is {score(goal)}."
    if ceiling is None or threshold is None:
        return f"Return {score(mean_return)}.{at_best}"
    if mean_return > threshold:
        comparison = f"above what any policy without memory can reach ({score(ceiling)})."
    elif mean_return > ceiling:
        comparison = f"hardly above what a policy without memory can reach ({score(ceiling)}), which may be luck."
    else:
        comparison = f"not yet above what a policy without memory can reach ({score(ceiling)})."
    return f"Return {score(mean_return)}: {comparison}{at_best}"


def _length(result: "RunResult", trained: bool) -> str:
    if not trained:
        return f"Nothing left to train: all {count(result.steps)} steps of {result.run} were done before."
    speed = f", {count(result.steps / result.seconds)} steps/s" if result.seconds > 0 else ""
    return f"{result.run}: {count(result.steps)} steps in {clock(result.seconds)}{speed}."


def diagnosis_lines(diagnosis: Diagnosis, extra: Sequence[str] = ()) -> list[str]:
    """The summary, or the findings; `extra` is further evidence."""
    lines = [] if diagnosis.findings else _wrap(diagnosis.summary, "")
    for finding in diagnosis.findings:
        lines += [*([""] if lines else []), *finding_lines(finding)]
    for sentence in extra:
        lines += _wrap(sentence, "")
    return lines


def finding_lines(finding: Finding) -> list[str]:
    parts = {"seen": finding.evidence, "means": finding.meaning, "try": finding.advice}
    return [finding.name, *(line for label, text in parts.items() for line in _wrap(text, f"  {label:<7}"))]


def _wrap(text: str, start: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=" " * len(start), break_long_words=False)
