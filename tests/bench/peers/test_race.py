"""Races against peers: one that is missing or fails becomes a row with the reason, and the others are measured."""

import importlib
import subprocess
import sys

import pytest
import torch

from bench.peers import catalogue, install, race
from bench.peers.catalogue import PEERS, Peer
from bench.peers.race import PeerOptions
from engram.bench import train as tasks
from engram.bench.process import ProgramError
from engram.bench.race import Entry
from engram.config.load import load

TINY = {"envs": 4, "horizon": 8, "minibatches": 2, "epochs": 1, "hidden": 8}


@pytest.fixture
def tiny(monkeypatch) -> None:
    monkeypatch.setitem(race.TASKS, "cartpole", ("cartpole", {**tasks.CARTPOLE, **TINY}))
    monkeypatch.setattr(race, "WORKERS", {})  # without Engram's own program, which tests/bench/test_verbs.py runs


def options(tmp_path, **kwargs) -> PeerOptions:
    return PeerOptions(rounds=1, seconds=0.0, threads=[1], tasks=["cartpole"], venvs=tmp_path, **kwargs)


def test_a_missing_peer_gets_the_reason_and_the_others_are_measured(tiny, tmp_path) -> None:
    result = race.measure(options(tmp_path, peers=["rl_games", "plain"]), print)
    missing, plain = result.races[0].entries
    assert missing.failed == "not installed: make bench ARGS='peers --install'"
    assert plain.rate
    assert set(plain.phases) == {"environment", "inference", "learning"}
    assert [(limit.at_least, limit.ratio, limit.met) for limit in result.thresholds] == [(1.8, None, None)]


def test_only_the_fastest_of_each_name_reports_its_return(monkeypatch, tmp_path) -> None:
    learned = []

    def learn(command, threads, steps, environment=None):
        learned.append((threads, steps))
        return {"return": 480.0, "steps": steps, "seconds": 30.0}

    monkeypatch.setattr(race, "learn", learn)
    entries = [Entry("engram", 1, "0 workers"), Entry("engram", 2, "2 workers", best=True)]
    for entry in entries:
        race._learn(entry, tasks.CARTPOLE, options(tmp_path, learn=500_000), print)
    assert learned == [(2, 500_000)]
    assert [entry.facts for entry in entries] == [{}, {"return": 480.0, "seconds to it": 30.0}]


def test_a_failed_installation_becomes_the_reason(monkeypatch, tmp_path) -> None:
    """Runs the real pip, which finds no package."""
    recipe = Peer("nothing", "run_plain.py", ("cartpole",), (("--no-index", "engram-no-such-package"),))
    monkeypatch.setitem(PEERS, "nothing", recipe)
    monkeypatch.setattr(install.venv, "create", lambda place, **_: (place / "bin").mkdir(parents=True))
    real = subprocess.run
    monkeypatch.setattr(install.subprocess, "run", lambda command, **more: real([sys.executable, *command[1:]], **more))
    failures = install.install(["nothing", "plain"], tmp_path, print)
    assert list(failures) == ["nothing"]
    assert "could not be installed" in failures["nothing"]
    assert "engram-no-such-package" in failures["nothing"]
    (contestant,) = race._peer("nothing", tasks.CARTPOLE, options(tmp_path), failures["nothing"])
    with pytest.raises(ProgramError, match="engram-no-such-package"):
        contestant.open()


def test_a_peer_is_installed_again_when_its_recipe_changes(monkeypatch, tmp_path) -> None:
    installed = []
    monkeypatch.setattr(install.venv, "create", lambda place, **_: place.mkdir(parents=True, exist_ok=True))
    monkeypatch.setattr(install, "_pip", lambda place, packages, environment: installed.append(packages))
    for packages in (("one",), ("one",), ("two",)):
        monkeypatch.setitem(PEERS, "some", Peer("some", "run_plain.py", ("cartpole",), (packages,)))
        assert install.install(["some"], tmp_path, print) == {}
        assert install.python_of("some", tmp_path) == tmp_path / "some" / "bin" / "python"
    assert installed == [("one",), ("two",)]


def test_every_peer_has_a_program_and_thresholds_only_for_its_tasks() -> None:
    for name, peer in PEERS.items():
        assert (race.RUNNERS / peer.program).exists()
        assert all(peer.title != other.title for key, other in PEERS.items() if key != name)
    assert all(task in PEERS[peer].tasks for task, limits in race.THRESHOLDS.items() for peer in limits)
    assert any(requirement == catalogue.TORCH for step in PEERS["pufferlib"].packages for requirement in step)


@pytest.mark.parametrize("task", [tasks.CARTPOLE, tasks.ARENA, race.ARENA_52])
def test_engram_does_the_same_work_as_the_others(task) -> None:
    trainer = load(tasks.overrides_of(task, 0)).trainer
    rows = task["envs"] * (1 if task is tasks.CARTPOLE else 24)
    assert trainer.batch_size == rows * task["horizon"]
    assert trainer.minibatch_size == trainer.batch_size // task["minibatches"]
    assert (trainer.update_epochs, trainer.ppo.vf_clip_coef, trainer.memory) == (task["epochs"], None, "carry")


def test_peers_get_all_they_need_to_know_about_the_arena() -> None:
    options = race.task_options(tasks.ARENA)
    assert (options["minibatches"], options["window"], len(options["features"]) > 5) == (6, [11, 11], True)
    assert len(race.task_options(race.ARENA_52)["features"]) == 52


def test_the_repeated_actor_gives_the_same_logits(monkeypatch) -> None:
    monkeypatch.syspath_prepend(race.RUNNERS)
    networks = importlib.import_module("networks")
    torch.manual_seed(0)
    net = networks.FastNet([11, 11], [[1, 1.0], [2, 1.0]], actions=5)
    hidden = torch.randn(7, 128)
    once = net.decode(hidden)[0]
    net.repeated = True
    torch.testing.assert_close(net.decode(hidden)[0], once)
