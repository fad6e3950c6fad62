"""Weights from elsewhere: from a run's own checkpoints, and from another run's."""

import shutil
from pathlib import Path

import pytest
import torch
from support import running

from engram.config.load import load_run
from engram.env.registry import make_spec
from engram.settings import UserError
from engram.training import run as runs
from engram.training.checkpoint import loading
from engram.training.checkpoint.files import load_checkpoint, load_latest
from engram.training.checkpoint.loading import checkpoint_of, find_checkpoint, load_agent

WORLD = ("py_agent.num_layers=1", "env.max_steps=8", "env.agents=1", "env.window=3", "env.size=6", "env.walls=0")
WORKSHOP = ("env=small", *WORLD, "env.mines=1")
NAVIGATION = ("env=navigation", *WORLD, "env.altars=2")


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A directory with a run on the recall task and one in a workshop."""
    directory = tmp_path_factory.mktemp("runs")
    running.run(directory, "trainer.ppo.l2_init_coef=0.1", name="recall")
    running.run(directory, *WORKSHOP, name="workshop", epochs=1)
    return directory


def first_weights(monkeypatch, directory: Path, *words: str) -> dict[str, torch.Tensor]:
    """The initial weights of a run, which is then stopped."""

    def stop(training, *_: object) -> None:
        seen.update(training.agent.state_dict())
        assert not training.optimizer.state
        assert training.progress.steps == 0
        raise KeyboardInterrupt

    seen: dict[str, torch.Tensor] = {}
    monkeypatch.setattr(runs, "train", stop)
    with pytest.raises(KeyboardInterrupt):
        running.run(directory, *words)
    return seen


@pytest.mark.parametrize("which", ["recall", "recall/checkpoints/epoch_000002"])
def test_init_from_loads_weights_and_nothing_else(monkeypatch, tmp_path, source, which) -> None:
    weights = first_weights(monkeypatch, tmp_path, f"init_from={source / which}", "seed=7")
    path = source / "recall" / "checkpoints" / ("epoch_000003" if which == "recall" else "epoch_000002")
    stored = load_checkpoint(path).groups["weights"]
    assert weights
    assert all(torch.equal(tensor, stored[name]) for name, tensor in weights.items())
    assert {name for name in stored if name not in weights} == {name for name in stored if ".l2_init." in name}


def test_a_run_with_init_from_resumes_from_its_own_checkpoints(tmp_path, source) -> None:
    other = shutil.copytree(source / "recall", tmp_path / "other")
    words = (f"init_from={other}", "trainer.norm_obs=false")  # it depends on the length of a run
    running.run(tmp_path, *words, epochs=4, name="whole")
    running.run(tmp_path, *words, epochs=2)
    shutil.rmtree(other)
    running.run(tmp_path, *words, epochs=4)
    assert running.metrics(tmp_path) == running.metrics(tmp_path, "whole")


def test_weights_that_do_not_fit_are_one_error_that_names_them(tmp_path, source) -> None:
    with pytest.raises(UserError) as caught:
        running.run(tmp_path, f"init_from={source / 'recall'}", "py_agent.hidden_size=16")
    said = str(caught.value)
    assert "policy.core.weight_ih_l0 is [32, 128], expected [64, 128]" in said
    assert "Use the policy and options they were trained with" in said
    with pytest.raises(UserError, match=r"policy\.core\.weight_ih_l1 is missing"):
        running.run(tmp_path, f"init_from={source / 'recall'}", "py_agent.num_layers=2")


def test_weights_that_are_no_numbers_are_refused(source) -> None:
    checkpoint, settings = checkpoint_of(source / "recall", "latest"), load_run(source / "recall")
    checkpoint.groups["weights"]["policy.core.weight_ih_l0"][0, 0] = torch.nan
    with pytest.raises(UserError, match=r"policy\.core\.weight_ih_l0 holds NaN or infinity"):
        load_agent(checkpoint, settings.policy, make_spec(settings.env), training=False)


def test_an_environment_with_other_actions_is_refused(tmp_path, source) -> None:
    with pytest.raises(UserError, match="made for recall cannot act in recall: the policy reads observations of 6"):
        running.run(tmp_path, f"init_from={source / 'recall'}", "env.cues=5")


def test_a_world_with_other_features_is_learned_resumed_and_evaluated(tmp_path, source) -> None:
    words = (*NAVIGATION, f"init_from={source / 'workshop'}")
    running.run(tmp_path, *words, name="whole", epochs=3)
    for epochs in (1, 3):
        running.run(tmp_path, *words, epochs=epochs)
    assert running.metrics(tmp_path) == running.metrics(tmp_path, "whole")
    checkpoint, settings = checkpoint_of(tmp_path / "x", "latest"), load_run(tmp_path / "x")
    agent = load_agent(checkpoint, settings.policy, make_spec(settings.env), training=False)
    learned = {feature.name for feature in agent.policy.env_spec.features}
    known = {feature.name for feature in make_spec(load_run(source / "workshop").env).features}
    assert known <= learned


def test_a_missing_path_is_an_error(tmp_path, source) -> None:
    with pytest.raises(UserError, match=r"init_from: no such directory: nowhere. Give a run"):
        running.run(tmp_path, "init_from=nowhere")
    with pytest.raises(UserError, match=r"init_from: .*/runs\S* has no readable checkpoint"):
        running.run(tmp_path, f"init_from={source}")


def test_checkpoints_of_a_run_are_found_by_name_or_path(source) -> None:
    latest = checkpoint_of(source / "recall", "latest")
    assert latest.path.name == "epoch_000003"
    assert checkpoint_of(source / "recall", str(latest.path)).state == latest.state
    assert checkpoint_of(source / "recall", "best").path.name == "best"
    with pytest.raises(UserError, match=r"checkpoint: \S*workshop has no best checkpoint yet"):
        checkpoint_of(source / "workshop", "best")


def test_a_damaged_checkpoint_is_skipped_unless_it_was_named(tmp_path, source, monkeypatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(loading.log, "warning", lambda text, *values: said.append(text % values))
    run = shutil.copytree(source / "recall", tmp_path / "run")
    newest = load_latest(run / "checkpoints")[0]
    assert newest is not None
    (newest.path / "weights.safetensors").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"checkpoint: the checkpoint is not readable: .* has changed"):
        find_checkpoint(newest.path, "checkpoint")
    assert find_checkpoint(run, "checkpoint").path.name == "epoch_000002"
    assert len(said) == 1
    assert "using the one before" in said[0]
    assert str(newest.path) in said[0]


def test_hundreds_of_unreadable_checkpoints_take_few_lines(tmp_path, source, monkeypatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(loading.log, "warning", lambda text, *values: said.append(text % values))
    run = shutil.copytree(source / "recall", tmp_path / "run")
    for epoch in range(100, 1000):
        (run / "checkpoints" / f"epoch_{epoch}").mkdir()
    find_checkpoint(run, "checkpoint")
    assert len(said) == 7
    assert said[-1] == "894 more checkpoints are not readable"


def test_an_intact_checkpoint_is_found_below_more_than_a_thousand_empty_ones(tmp_path, source) -> None:
    run = shutil.copytree(source / "recall", tmp_path / "run")
    for epoch in range(100, 1200):
        (run / "checkpoints" / f"epoch_{epoch}").mkdir()
    assert int(find_checkpoint(run, "checkpoint").path.name[6:]) < 100


def test_more_than_a_thousand_damaged_checkpoints_are_refused_soon(tmp_path, source) -> None:
    run = shutil.copytree(source / "recall", tmp_path / "run")
    for epoch in range(100, 1200):
        (run / "checkpoints" / f"epoch_{epoch}").mkdir()
        (run / "checkpoints" / f"epoch_{epoch}" / "manifest.json").touch()
    with pytest.raises(UserError, match=r"none of the checkpoints .*epoch_199 and older ones were not tried"):
        find_checkpoint(run, "checkpoint")


def test_if_no_checkpoint_is_readable_a_readable_best_is_suggested(tmp_path, source) -> None:
    run = shutil.copytree(source / "recall", tmp_path / "run", symlinks=True)
    for path in (run / "checkpoints").glob("epoch_*"):
        (path / "state.json").write_text("{}")
    says = r"init_from: none of the checkpoints in \S+ is readable \(.* has changed .*\): use another one"
    with pytest.raises(UserError, match=rf"{says}, such as the best, {run}/checkpoints/best$"):
        find_checkpoint(run, "init_from")
    (run / "checkpoints" / "best").unlink()
    with pytest.raises(UserError, match=rf"{says}$"):
        find_checkpoint(run, "init_from")
