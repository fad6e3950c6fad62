"""What is said at the end of a run: how far it came, whether that takes memory, and what to do next."""

from collections.abc import Callable, Sequence

from engram.display.ceiling import beyond_luck
from engram.display.figures import clock, count, score
from engram.display.story import Result
from engram.env.spec import EnvSpec

NextSteps = Callable[[int], Sequence[str]]  # the commands that may come next, after so many steps


def summary(result: Result, trained: bool) -> list[str]:
    """What came of it, in lines. `trained`: whether there was anything left to do in this sitting."""
    lines = [_length(result, trained), verdict(result.mean_return, result.env)]
    return lines if result.checkpoint is None else [*lines, f"Checkpoint: {result.checkpoint}"]


def offer(next_steps: Sequence[str]) -> list[str]:
    """The commands that may come next, in lines."""
    return ["", "Next:", *(f"  {step}" for step in next_steps)] if next_steps else []


def nothing(_: int) -> Sequence[str]:
    """No commands, however many steps were done."""
    return ()


def verdict(mean_return: float | None, env: EnvSpec) -> str:
    """The return reached, beside what any policy without memory can reach, in a sentence."""
    ceiling, clear, goal = env.memoryless_ceiling, beyond_luck(env), env.mean_return_goal
    if mean_return is None:
        return "No episode has ended yet, so there is no return: train for longer."
    at_best = "" if goal is None else f" The best possible is {score(goal)}."
    if ceiling is None or clear is None:
        return f"Return {score(mean_return)}.{at_best}"
    if mean_return > clear:
        says = f"above what any policy without memory can reach ({score(ceiling)})."
    elif mean_return > ceiling:
        says = f"hardly above what a policy without memory can reach ({score(ceiling)}), which may be luck."
    else:
        says = f"not yet above what a policy without memory can reach ({score(ceiling)})."
    return f"Return {score(mean_return)}: {says}{at_best}"


def _length(result: Result, trained: bool) -> str:
    if not trained:
        return f"Nothing left to train: all {count(result.steps)} steps of {result.run} were done before."
    speed = f", {count(result.steps / result.seconds)} steps/s" if result.seconds > 0 else ""
    return f"{result.run}: {count(result.steps)} steps in {clock(result.seconds)}{speed}."
