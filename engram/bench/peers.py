"""Engram and other systems at the same work, side by side: masked CartPole, and the arena of 24 agents.

Each is a program in its own environment, and they take turns; between its turns a program stands still. Engram runs
as `engram train` does, with exact resets; of the others some do not reset at all.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from engram.bench.catalogue import PEERS
from engram.bench.install import install, python_of
from engram.bench.options import Options
from engram.bench.ours import command
from engram.bench.process import PeerError, contestant, learn
from engram.bench.race import Contestant, Entry, Measure, Race, run_race
from engram.bench.result import Bar, Result
from engram.bench.tasks import ARENA, ARENA_52, POLE, WORKERS, options_of, steps_per_update, words_of

OURS = "engram"
RUNNERS = Path(__file__).parent / "runners"
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "pole": ("masked CartPole: 64 x 64, 4 x 4 minibatches, MLP 128-128, LSTM 128", POLE),
    "arena": ("arena: 24 agents x 16, T 64, batch 24576, minibatch 4096, 1 epoch, fast", ARENA),
    "arena52": ("the same with the 52 features that mettagrid's default world has", ARENA_52),
}
ARENA_BARS = {"pufferlib": 3.0, "plain": 3.3}
BARS = {  # by task and peer: how many times faster we promise to be
    "pole": {"pufferlib": 1.3, "rl_games": 1.8, "sb3_contrib": 5.0},
    "arena": ARENA_BARS,
    "arena52": ARENA_BARS,
}


def measure(options: Options, progress: Callable[[str], None]) -> Result:
    chosen = options.peers or list(PEERS)
    reasons = install(chosen, options.venvs, progress) if options.install else {}
    result = Result("peers", options.to_json())
    for task, (name, settings) in TASKS.items():
        if not options.wants(task):
            continue
        everybody = [*_ours(settings, options)]
        for peer in chosen:
            if task in PEERS[peer].tasks:
                everybody += _theirs(peer, settings, options, reasons.get(peer))
        race = run_race(name, everybody, options.rounds, options.seconds, "steps", baseline=OURS, progress=progress)
        _tell_resets(race, settings)
        if options.learn and task == "pole":
            for entry in race.entries:
                _learn(entry, settings, options, progress)
        result.races.append(race)
        result.bars += [
            Bar(f"{task}: engram ÷ {PEERS[peer].title}", race.ratio(OURS, PEERS[peer].title), at_least=bar)
            for peer, bar in BARS[task].items()
            if peer in chosen
        ]
    return result


def _ours(settings: dict[str, Any], options: Options) -> Iterator[Contestant]:
    for threads in options.threads:
        for note, workers in WORKERS.items():
            words = command(words_of(settings, workers), threads)
            how = contestant(words, threads, steps_per_update=steps_per_update(settings))
            yield Contestant(OURS, how, threads, note)


def _theirs(peer: str, settings: dict[str, Any], options: Options, reason: str | None) -> Iterator[Contestant]:
    for threads in PEERS[peer].threads or options.threads:

        def open_it(threads: int = threads) -> AbstractContextManager[Measure]:
            if reason is not None:
                raise PeerError(reason)
            words = _program(peer, settings, threads, options.venvs)
            return contestant(words, threads, PEERS[peer].environment, steps_per_update(settings))()

        yield Contestant(PEERS[peer].title, open_it, threads)


def _program(peer: str, settings: dict[str, Any], threads: int, venvs: Path) -> list[str]:
    asked = {**options_of(settings), "threads": threads}
    return [str(python_of(peer, venvs)), str(RUNNERS / PEERS[peer].program), json.dumps(asked)]


def _tell_resets(race: Race, settings: dict[str, Any]) -> None:
    """Beside the speed, whether memory is right: some are fast because they skip that."""
    for entry in race.entries:
        peer = next((peer for peer in PEERS.values() if peer.title == entry.name), None)
        exact = peer is not PEERS.get("plain") or settings["exact"]
        entry.facts["resets"] = (peer.resets if peer else "exact") if exact else "never"


def _learn(entry: Entry, settings: dict[str, Any], options: Options, progress: Callable[[str], None]) -> None:
    """The return after so many steps, by the fastest of each name: what the speed is worth."""
    if not entry.best:
        return
    progress(f"{entry.name}: {options.learn} steps")
    try:
        if entry.name == OURS:
            words = command(words_of(settings, WORKERS[entry.note]), entry.threads)
            answer = learn(words, entry.threads, options.learn)
        else:
            peer = next(name for name in PEERS if PEERS[name].title == entry.name)
            words = _program(peer, settings, entry.threads, options.venvs)
            answer = learn(words, entry.threads, options.learn, PEERS[peer].environment)
    except PeerError as error:
        entry.facts["return"] = str(error)
        return
    if answer["return"] is not None:
        entry.facts["return"] = answer["return"]
    entry.facts["seconds to it"] = answer["seconds"]
