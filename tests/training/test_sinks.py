"""Where records go beside metrics.jsonl."""

import sys
from types import SimpleNamespace

import pytest
from support.running import InterruptAfter, metrics, run

from engram.settings import UserError
from engram.training.sinks import numbers


class FakeWandb(SimpleNamespace):
    """A wandb that remembers what it was given."""

    class Error(Exception):
        pass

    def __init__(self) -> None:
        super().__init__(runs=[])

    def init(self, **options):
        if options["project"] == "forbidden":
            raise self.Error("api_key not configured")
        run = SimpleNamespace(options=options, logged=[], steps=None, finished=False)
        run.log = run.logged.append
        run.define_metric = lambda name, step_metric: setattr(run, "steps", (name, step_metric))
        run.finish = lambda: setattr(run, "finished", True)
        self.runs.append(run)
        return run


@pytest.fixture
def wandb(monkeypatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_only_numbers_are_logged() -> None:
    assert numbers({"epoch": 1, "return": None, "loss/total": 0.5, "text": "a"}) == {"epoch": 1, "loss/total": 0.5}


def test_by_default_no_sink_is_imported_or_written(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    run(tmp_path, epochs=1)
    assert not (tmp_path / "x" / "tensorboard").exists()


@pytest.mark.parametrize(
    ("word", "module", "extra"),
    [("trainer.tensorboard=true", "torch.utils.tensorboard", "tensorboard"), ("wandb=offline", "wandb", "wandb")],
)
def test_a_missing_package_is_an_error_with_the_command_that_installs_it(
    tmp_path, monkeypatch, word, module, extra
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    said = rf"{word} needs {extra}, which is not installed: pip install 'engram-rl\[{extra}\]'"
    with pytest.raises(UserError, match=said):
        run(tmp_path, word, epochs=1)


def test_tensorboard_has_each_step_once_also_after_a_resume(tmp_path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    words = ("trainer.tensorboard=true", "trainer.checkpoint.interval=2")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, *words, epochs=4, display=InterruptAfter(3))
    run(tmp_path, *words, epochs=4)
    events = EventAccumulator(str(tmp_path / "x" / "tensorboard"))
    events.Reload()
    curve = [(event.step, pytest.approx(event.value)) for event in events.Scalars("loss/total")]
    assert curve == [(record["steps"], record["loss/total"]) for record in metrics(tmp_path)]


def test_wandb_gets_the_settings_and_every_record_and_a_resumed_run_is_the_same_one(tmp_path, wandb) -> None:
    run(tmp_path, "wandb=offline", "wandb.project=mine", epochs=2)
    run(tmp_path, "wandb=online", epochs=3)
    first, second = wandb.runs
    assert (first.options["mode"], second.options["mode"]) == ("offline", "online")
    assert first.options["project"] == "mine"
    assert first.options["name"] == "x"
    assert first.options["id"] == second.options["id"]
    assert first.options["config"]["env"]["kind"] == "recall"
    assert [record["epoch"] for record in first.logged + second.logged] == [1, 2, 3]
    assert all(run.finished and run.steps == ("*", "steps") for run in wandb.runs)


def test_wandb_without_a_login_is_a_user_error(tmp_path, wandb) -> None:
    with pytest.raises(UserError, match="api_key not configured: log in with `wandb login`, or give wandb=offline"):
        run(tmp_path, "wandb=online", "wandb.project=forbidden", epochs=1)


def test_a_run_that_fails_closes_its_sinks(tmp_path, wandb, monkeypatch) -> None:
    monkeypatch.setattr("engram.training.loop.compute_gradient", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(tmp_path, "wandb=offline", epochs=1)
    assert wandb.runs[0].finished
