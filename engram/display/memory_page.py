"""The memory page: what an agent remembers and for how long, from a memory report as plain data."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from engram.display.formatting import percent, score
from engram.display.page import page

SMALL_CHANGE = 0.05  # of an action distribution; smaller ones do not count
READABLE = 0.5  # a fact is readable if its probe is at least this fraction of the way from chance to certainty
MAX_FACTS = 3  # named in the verdict

Report = Mapping[str, Any]  # a MemoryReport, as `to_json` gives it


class MemoryFacts(NamedTuple):
    """Which agent was examined, and how."""

    run: str
    env: str
    policy: str
    epoch: int
    steps: int  # of training
    bptt: int  # trainer.bptt_horizon
    greedy: bool
    seed: int
    ceiling: float | None  # the best return without memory, if known


def memory_page(facts: MemoryFacts, report: Report) -> str:
    return page("memory.html", {**facts._asdict(), "verdict": verdict(facts, report), "report": report}, {})


def verdict(facts: MemoryFacts, report: Report) -> list[str]:
    """The results in a few sentences."""
    return [*_about_returns(report["returns"]), *about_horizon(report["horizon"], facts.bptt), *_about_facts(report)]


def _about_returns(returns: Mapping[str, Any]) -> list[str]:
    normal, erased = returns["normal"], returns["erased"]
    if normal is None or erased is None:
        return ["No episode ended, so there is no return to compare."]
    others = [f"{name} {score(returns[name]['mean'])}" for name in ("frozen", "swapped") if returns[name] is not None]
    figures = f"{score(normal['mean'])} with memory, {score(erased['mean'])} with memory erased"
    figures += f" ({', '.join(others)})" if others else ""
    if normal["low"] is None or erased["high"] is None:
        return [f"The return is {figures}; one episode gives no confidence interval, so they cannot be compared."]
    if normal["low"] > erased["high"]:
        return [f"The return needs memory: {figures}."]
    return [f"The return does not measurably depend on memory: {figures}."]


def about_horizon(horizon: Mapping[str, Any] | None, bptt: int) -> list[str]:
    """Sentences about the memory horizon, which is None if no episode has two steps."""
    if horizon is None:
        return ["Episodes have a single step, so nothing can be remembered."]
    first, largest = horizon["change"][0]["mean"], horizon["largest"]
    sentence = (
        f"Without memory its actions would change by {percent(first)} on average, and by {percent(largest)} at "
        "the step that depends on memory most."
    )
    lasting = _lasting(horizon)
    if not lasting:
        return [
            sentence,
            "The memory horizon is short: hardly any action depends on earlier observations.",
        ]
    last = lasting[-1]
    end = "as far as episodes reach" if last == horizon["lags"][-1] else f"bptt_horizon is {bptt}"
    return [
        sentence,
        f"The memory horizon is about {last} steps: if it was erased that long ago, a tenth of the actions still "
        f"change by {percent(SMALL_CHANGE)} or more ({end}).",
    ]


def _lasting(horizon: Mapping[str, Any]) -> list[int]:
    """The lags at which erasing memory still changes a tenth of the actions."""
    return [lag for lag, change in zip(horizon["lags"], horizon["strong"], strict=True) if change >= SMALL_CHANGE]


def _about_facts(report: Report) -> list[str]:
    """Sentences about facts of the first observation that later can be read from memory only."""
    found = []
    for fact in report["facts"]:
        if fact["name"].startswith("first saw"):
            remembered = [index for index, score in enumerate(fact["scores"]) if is_remembered(score)]
            if remembered:
                found.append((len(remembered), fact, remembered[-1]))
    found.sort(key=lambda each: -each[0])
    sentences = [_about_fact(fact, report["steps"], last) for _, fact, last in found[:MAX_FACTS]]
    if report["facts"] and not sentences:
        return ["Nothing of the first observation can be read from memory once it is out of sight."]
    if sentences and report["horizon"] is not None and not _lasting(report["horizon"]):
        sentences.append("So memory holds what was seen, as in any untrained network, but actions do not use it.")
    return sentences


def is_remembered(score: Mapping[str, float] | None) -> bool:
    """Whether a fact can be read from memory at a step, but not from the observation."""
    if score is None:
        return False
    chance = max(0.0, score["control"])  # an explained variance can be negative
    needed = chance + READABLE * (1 - chance)
    return score["memory"] >= needed > score["observation"]


def _about_fact(fact: Mapping[str, Any], steps: Sequence[int], last: int) -> str:
    shown = {source: percent(max(0.0, value)) for source, value in fact["scores"][last].items()}
    known = [index for index, score in enumerate(fact["scores"]) if score is not None]
    end = ", the last one that is reached often enough" if last == known[-1] else ""
    measured = "accuracy" if fact["measure"] == "accuracy" else "of its variance"
    return (
        f"“{fact['name']}” can be read from memory until step {steps[last]}{end}: there with {shown['memory']} "
        f"{measured}, from the observation alone with {shown['observation']} (control: {shown['control']})."
    )
