"""The checkpoints of a run: the last few, and the best by return."""

from pathlib import Path

import pytest
from support import running

from engram.training import environment
from engram.training.checkpoint import checkpoints as archive
from engram.training.checkpoint import list_checkpoints
from engram.training.checkpoint.files import load_checkpoint
from engram.training.evaluate import evaluate


@pytest.fixture
def evaluated(monkeypatch):
    """Evaluations that give these returns, one after the other."""

    def use(*returns: float) -> None:
        left = list(returns)

        def fake(*arguments, **options):
            real = evaluate(*arguments, **options)
            if options.get("greedy"):
                return real
            return type("Fake", (), {"record": lambda self: {**real.record(), "evaluate/return": left.pop(0)}})()

        monkeypatch.setattr(environment, "evaluate", fake)

    return use


def best(directory: Path) -> dict:
    return load_checkpoint(directory / "x" / "checkpoints" / "best").state


def epochs(directory: Path) -> list[int]:
    return [int(path.name[6:]) for path in list_checkpoints(directory / "x" / "checkpoints")]


def test_the_best_by_evaluation_outlives_the_last_few(tmp_path, evaluated) -> None:
    evaluated(0.1, 0.7, 0.3, 0.7, 0.2)
    running.run(tmp_path, "trainer.evaluate_interval=1", "trainer.checkpoint.keep=2", epochs=5)
    assert best(tmp_path)["progress"]["epoch"] == 2  # of two equal ones, the first
    assert best(tmp_path)["score"] == {"evaluated": True, "value": 0.7}
    assert epochs(tmp_path) == [4, 5]


def test_a_resumed_run_remembers_its_best(tmp_path, evaluated) -> None:
    evaluated(0.8, 0.5, 0.9)
    running.run(tmp_path, "trainer.evaluate_interval=1", epochs=1)
    running.run(tmp_path, "trainer.evaluate_interval=1", epochs=2)
    assert best(tmp_path)["score"]["value"] == 0.8
    running.run(tmp_path, "trainer.evaluate_interval=1", epochs=3)
    assert best(tmp_path)["score"]["value"] == 0.9


def test_without_evaluations_the_best_is_by_the_returns_of_training(tmp_path) -> None:
    running.run(tmp_path, epochs=6)
    returns = [record["return"] for record in running.metrics(tmp_path)]
    assert best(tmp_path)["score"] == {"evaluated": False, "value": max(returns)}
    assert returns[best(tmp_path)["progress"]["epoch"] - 1] == max(returns)


def test_a_few_episodes_are_not_enough_for_a_best(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(archive, "MIN_EPISODES", 10_000)
    running.run(tmp_path)
    assert not (tmp_path / "x" / "checkpoints" / "best").exists()


def test_an_evaluated_return_outranks_a_training_return(tmp_path, evaluated) -> None:
    running.run(tmp_path, epochs=2)
    assert not best(tmp_path)["score"]["evaluated"]
    evaluated(-5.0)
    running.run(tmp_path, "trainer.evaluate_interval=3", epochs=3)
    assert best(tmp_path)["score"] == {"evaluated": True, "value": -5.0}
    running.run(tmp_path, epochs=4)
    assert best(tmp_path)["score"]["evaluated"]


def test_an_evaluated_epoch_is_saved_between_checkpoints_too(tmp_path) -> None:
    running.run(tmp_path, "trainer.evaluate_interval=2", "trainer.checkpoint.interval=100", epochs=5)
    assert epochs(tmp_path) == [2, 4, 5]


def test_an_epoch_is_saved_once(tmp_path, monkeypatch) -> None:
    saved = []
    real = archive.save_checkpoint
    monkeypatch.setattr(archive, "save_checkpoint", lambda *a: (saved.append(a[1]), real(*a))[1])
    running.run(tmp_path, epochs=2)
    running.run(tmp_path, epochs=2)  # nothing left to do
    assert saved == [1, 2]


def test_a_damaged_best_is_reported_and_replaced(tmp_path, evaluated) -> None:
    evaluated(0.9, 0.1)
    running.run(tmp_path, "trainer.evaluate_interval=1", epochs=1)
    (tmp_path / "x" / "checkpoints" / "best" / "state.json").write_text("{}")
    display = running.Silent()
    running.run(tmp_path, "trainer.evaluate_interval=1", epochs=2, display=display)
    assert any("best checkpoint is not readable" in message for message in display.messages)
    assert best(tmp_path)["score"]["value"] == 0.1
