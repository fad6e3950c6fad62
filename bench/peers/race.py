"""Engram and other systems at the same work, side by side: masked CartPole, and the arena with 24 agents.

Every system is a program in its own virtual environment. The programs take turns, and are suspended in between. Engram
runs as `engram train` does, with exact resets; some of the others never reset memory when they learn.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.peers.catalogue import PEERS
from bench.peers.install import install, python_of
from engram.bench.process import ProgramError, in_own_process, learn
from engram.bench.race import Contestant, Entry, Measure, Options, Race, run_race
from engram.bench.result import BenchResult, Threshold
from engram.bench.train import ARENA, CARTPOLE, WORKERS, arena_settings, command, overrides_of, steps_per_update
from engram.env.mettagrid.worlds import world
from engram.env.registry import make_spec

DEFAULT_VENVS = Path("~/.cache/engram/peers")
ENGRAM = "engram"
RUNNERS = Path(__file__).parent / "runners"
# Policies read 22 features of the arena, and 52 of mettagrid's default world.
ARENA_52: dict[str, Any] = {**ARENA, "resources": [f"resource_{number}" for number in range(15)]}
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "cartpole": ("masked CartPole: 64 x 64, 4 x 4 minibatches, MLP 128-128, LSTM 128", CARTPOLE),
    "arena": ("arena: 24 agents x 16, T 64, batch 24576, minibatch 4096, 1 epoch, fast", ARENA),
    "arena52": ("arena with 52 features, as many as mettagrid's default world has", ARENA_52),
}
ARENA_THRESHOLDS = {"pufferlib": 3.0, "plain": 3.3}
THRESHOLDS = {  # by task and peer: how many times as fast Engram must be
    "cartpole": {"pufferlib": 1.3, "rl_games": 1.8, "sb3_contrib": 5.0},
    "arena": ARENA_THRESHOLDS,
    "arena52": ARENA_THRESHOLDS,
}


@dataclass(frozen=True)
class PeerOptions(Options):
    peers: list[str] = field(default_factory=list)  # empty: all
    learn: int = 0  # steps after which returns are compared; 0: only speed
    install: bool = False
    venvs: Path = DEFAULT_VENVS


def measure(options: PeerOptions, progress: Callable[[str], None]) -> BenchResult:
    chosen = options.peers or list(PEERS)
    failures = install(chosen, options.venvs, progress) if options.install else {}
    result = BenchResult("peers", options.to_json())
    for task, (name, settings) in TASKS.items():
        if not options.includes(task):
            continue
        contestants = [*_engram(settings, options)]
        for peer in chosen:
            if task in PEERS[peer].tasks:
                contestants += _peer(peer, settings, options, failures.get(peer))
        race = run_race(name, contestants, options.rounds, options.seconds, "steps", baseline=ENGRAM, progress=progress)
        _note_resets(race, settings)
        if options.learn and task == "cartpole":
            for entry in race.entries:
                _learn(entry, settings, options, progress)
        result.races.append(race)
        result.thresholds += [
            Threshold(f"{task}: engram ÷ {PEERS[peer].title}", race.ratio(ENGRAM, PEERS[peer].title), at_least=limit)
            for peer, limit in THRESHOLDS[task].items()
            if peer in chosen
        ]
    return result


def task_options(task: dict[str, Any]) -> dict[str, Any]:
    """The task for programs that do not know Engram: for the arena, with its world, features and actions."""
    if task["name"] == "cartpole":
        return task
    settings = arena_settings(task)
    spec, config = make_spec(settings), world(settings)
    return {
        **task,
        "world": config.model_dump_json(),
        "window": list(spec.window),
        "features": [[feature.id, feature.normalization] for feature in spec.features],
        "actions": int(spec.single_action_space.n),
    }


def _engram(settings: dict[str, Any], options: PeerOptions) -> Iterator[Contestant]:
    for threads in options.threads:
        for note, workers in WORKERS.items():
            program = command(overrides_of(settings, workers), threads)
            start = in_own_process(program, threads, steps_per_update=steps_per_update(settings))
            yield Contestant(ENGRAM, start, threads, note)


def _peer(peer: str, settings: dict[str, Any], options: PeerOptions, failure: str | None) -> Iterator[Contestant]:
    for threads in PEERS[peer].threads or options.threads:

        def start(threads: int = threads) -> AbstractContextManager[Measure]:
            if failure is not None:
                raise ProgramError(failure)
            program = _runner(peer, settings, threads, options.venvs)
            return in_own_process(program, threads, PEERS[peer].environment, steps_per_update(settings))()

        yield Contestant(PEERS[peer].title, start, threads)


def _runner(peer: str, settings: dict[str, Any], threads: int, venvs: Path) -> list[str]:
    options = {**task_options(settings), "threads": threads}
    return [str(python_of(peer, venvs)), str(RUNNERS / PEERS[peer].program), json.dumps(options)]


def _note_resets(race: Race, settings: dict[str, Any]) -> None:
    """Adds a column: some systems are fast because they never reset memory."""
    for entry in race.entries:
        peer = next((peer for peer in PEERS.values() if peer.title == entry.name), None)
        exact = peer is not PEERS.get("plain") or settings["exact"]
        entry.facts["resets"] = (peer.resets if peer else "exact") if exact else "never"


def _learn(entry: Entry, settings: dict[str, Any], options: PeerOptions, progress: Callable[[str], None]) -> None:
    """Adds the return after `options.learn` steps, for the fastest contestant of each name."""
    if not entry.best:
        return
    progress(f"{entry.name}: {options.learn} steps")
    try:
        if entry.name == ENGRAM:
            program = command(overrides_of(settings, WORKERS[entry.note]), entry.threads)
            reply = learn(program, entry.threads, options.learn)
        else:
            peer = next(name for name in PEERS if PEERS[name].title == entry.name)
            program = _runner(peer, settings, entry.threads, options.venvs)
            reply = learn(program, entry.threads, options.learn, PEERS[peer].environment)
    except ProgramError as error:
        entry.facts["return"] = str(error)
        return
    if reply["return"] is not None:
        entry.facts["return"] = reply["return"]
    entry.facts["seconds to it"] = reply["seconds"]
