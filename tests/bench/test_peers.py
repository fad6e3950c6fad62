"""Peers: what is not installed, cannot be installed or fails is a row with the reason, and the rest goes on."""

import importlib
import subprocess
import sys

import pytest
import torch

from engram.bench import catalogue, install, peers, tasks
from engram.bench.catalogue import PEERS, Peer
from engram.bench.options import Options
from engram.bench.race import Entry
from engram.config.load import load

TINY = {"envs": 4, "horizon": 8, "minibatches": 2, "epochs": 1, "hidden": 8}


@pytest.fixture
def tiny(monkeypatch) -> None:
    monkeypatch.setitem(peers.TASKS, "pole", ("pole", {**tasks.POLE, **TINY}))
    monkeypatch.setattr(peers, "WORKERS", {"0 workers": 0})


def options(tmp_path, **kwargs) -> Options:
    return Options(rounds=1, seconds=0.0, threads=[1], tasks=["pole"], venvs=tmp_path, **kwargs)


def test_a_peer_that_is_not_there_is_a_row_with_the_reason_and_the_rest_is_measured(tiny, tmp_path) -> None:
    result = peers.measure(options(tmp_path, peers=["rl_games", "plain"]), print)
    ours, absent, plain = result.races[0].entries
    assert absent.failed == "not installed: engram bench peers --install"
    assert ours.rate
    assert plain.rate
    assert set(ours.phases) == {"environment", "inference", "learning"} == set(plain.phases)
    assert [(bar.at_least, bar.ratio, bar.met) for bar in result.bars] == [(1.8, None, None)]


def test_the_fastest_of_each_name_shows_what_it_learns(monkeypatch, tmp_path) -> None:
    asked = []

    def learn(command, threads, steps, environment=None):
        asked.append((threads, steps))
        return {"return": 480.0, "steps": steps, "seconds": 30.0}

    monkeypatch.setattr(peers, "learn", learn)
    entries = [Entry("engram", 1, "0 workers"), Entry("engram", 2, "2 workers", best=True)]
    for entry in entries:
        peers._learn(entry, tasks.POLE, options(tmp_path, learn=500_000), print)
    assert asked == [(2, 500_000)]
    assert [entry.facts for entry in entries] == [{}, {"return": 480.0, "seconds to it": 30.0}]


def test_an_installation_that_fails_becomes_the_reason(monkeypatch, tmp_path) -> None:
    """pip really runs, and finds nothing."""
    recipe = Peer("nothing", "run_plain.py", ("pole",), (("--no-index", "engram-no-such-package"),))
    monkeypatch.setitem(PEERS, "nothing", recipe)
    monkeypatch.setattr(install.venv, "create", lambda place, **_: (place / "bin").mkdir(parents=True))
    real = subprocess.run
    monkeypatch.setattr(install.subprocess, "run", lambda command, **more: real([sys.executable, *command[1:]], **more))
    reasons = install.install(["nothing", "plain"], tmp_path, print)
    assert list(reasons) == ["nothing"]
    assert "could not be installed" in reasons["nothing"]
    assert "engram-no-such-package" in reasons["nothing"]
    (contestant,) = peers._theirs("nothing", tasks.POLE, options(tmp_path), reasons["nothing"])
    with pytest.raises(peers.PeerError, match="engram-no-such-package"):
        contestant.open()


def test_a_recipe_that_has_changed_is_followed_again(monkeypatch, tmp_path) -> None:
    made = []
    monkeypatch.setattr(install.venv, "create", lambda place, **_: place.mkdir(parents=True, exist_ok=True))
    monkeypatch.setattr(install, "_pip", lambda place, packages, environment: made.append(packages))
    for packages in (("one",), ("one",), ("two",)):
        monkeypatch.setitem(PEERS, "some", Peer("some", "run_plain.py", ("pole",), (packages,)))
        assert install.install(["some"], tmp_path, print) == {}
        assert install.python_of("some", tmp_path) == tmp_path / "some" / "bin" / "python"
    assert made == [("one",), ("two",)]


def test_every_peer_has_its_program_and_a_bar_of_a_task_it_runs() -> None:
    for name, peer in PEERS.items():
        assert (peers.RUNNERS / peer.program).exists()
        assert all(peer.title != other.title for key, other in PEERS.items() if key != name)
    assert all(task in PEERS[peer].tasks for task, bars in peers.BARS.items() for peer in bars)
    assert any(requirement == catalogue.TORCH for step in PEERS["pufferlib"].packages for requirement in step)


@pytest.mark.parametrize("task", [tasks.POLE, tasks.ARENA, tasks.ARENA_52])
def test_ours_does_the_same_work_as_the_others(task) -> None:
    trainer = load(tasks.words_of(task, 0)).trainer
    rows = task["envs"] * (1 if task is tasks.POLE else 24)
    assert trainer.batch_size == rows * task["horizon"]
    assert trainer.minibatch_size == trainer.batch_size // task["minibatches"]
    assert (trainer.update_epochs, trainer.ppo.vf_clip_coef, trainer.memory) == (task["epochs"], None, "carry")


def test_the_arena_is_told_to_those_who_know_nothing_of_engram() -> None:
    told = tasks.options_of(tasks.ARENA)
    assert (told["minibatches"], told["window"], len(told["features"]) > 5) == (6, [11, 11], True)
    assert len(tasks.options_of(tasks.ARENA_52)["features"]) == 52


def test_an_actor_gives_the_same_however_often_it_multiplies(monkeypatch) -> None:
    monkeypatch.syspath_prepend(peers.RUNNERS)
    networks = importlib.import_module("networks")
    torch.manual_seed(0)
    net = networks.FastNet([11, 11], [[1, 1.0], [2, 1.0]], actions=5)
    hidden = torch.randn(7, 128)
    once = net.decode(hidden)[0]
    net.repeated = True
    torch.testing.assert_close(net.decode(hidden)[0], once)
