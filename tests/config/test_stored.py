"""Settings that are kept with a run."""

from contextlib import ExitStack

import pytest

from engram.config.load import load, load_run
from engram.config.stored import keep
from engram.settings import UserError


@pytest.fixture
def begun(tmp_path):
    """A run that has got as far as a checkpoint."""
    directory = keep(load(["run=mine", f"runs_dir={tmp_path}"]))
    (directory / "checkpoints" / "epoch_000001").mkdir(parents=True)
    return tmp_path


def test_settings_are_kept_in_the_runs_directory(tmp_path):
    settings = load(["run=mine", f"runs_dir={tmp_path}/deep/down", "seed=7"])
    assert keep(settings) == settings.directory
    assert load_run(settings.directory) == settings
    assert [file.name for file in settings.directory.iterdir()] == ["settings.yaml"]


def test_the_same_settings_go_on_with_a_run(begun):
    assert keep(load(["run=mine", f"runs_dir={begun}"]))


def test_a_run_may_go_on_for_longer_and_elsewhere(begun):
    words = [
        "trainer.total_timesteps=9",
        "trainer.num_workers=0",
        "trainer.checkpoint.keep=9",
        "trainer.evaluate_interval=9",
        "wandb=offline",
        "device=cpu",
    ]
    settings = load(["run=mine", f"runs_dir={begun}", *words])
    assert load_run(keep(settings)) == settings


def test_other_settings_are_another_run_and_every_difference_is_named(begun):
    with pytest.raises(UserError) as caught:
        keep(
            load(
                ["run=mine", f"runs_dir={begun}", "seed=7", "trainer.ppo.gamma=0.5", "py_agent.option=3", "device=cpu"]
            )
        )
    assert str(caught.value).splitlines() == [
        "seed: 7, but 1 when the run began",
        "py_agent.option: 3, but null when the run began",
        "trainer.ppo.gamma: 0.5, but 0.977 when the run began",
        f"{begun}/mine is another run: give another run=, or the settings it began with",
    ]
    assert load_run(begun / "mine").seed == 1


def test_another_environment_is_one_difference_not_one_for_each_of_its_settings(begun):
    with pytest.raises(UserError) as caught:
        keep(load(["run=mine", f"runs_dir={begun}", "env=recall"]))
    assert str(caught.value).splitlines()[0] == "env: recall, but tmaze when the run began"
    assert len(str(caught.value).splitlines()) == 2


def test_settings_of_a_run_without_a_checkpoint_can_be_corrected(tmp_path):
    keep(load(["run=mine", f"runs_dir={tmp_path}"]))
    assert load_run(keep(load(["run=mine", f"runs_dir={tmp_path}", "seed=7"]))).seed == 7


def test_a_copy_of_a_checkpoint_is_no_checkpoint(tmp_path):
    directory = keep(load(["run=mine", f"runs_dir={tmp_path}"]))
    (directory / "checkpoints" / "epoch_000001_backup").mkdir(parents=True)
    assert load_run(keep(load(["run=mine", f"runs_dir={tmp_path}", "seed=7"]))).seed == 7


def test_a_directory_that_is_not_a_run_is_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(UserError, match=r"mine exists and is not a run of Engram's: give another run="):
        keep(load(["run=mine", f"runs_dir={tmp_path}"]))


def test_a_directory_that_is_not_a_run_does_not_even_get_a_lock(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with ExitStack() as held, pytest.raises(UserError):
        keep(load(["run=mine", f"runs_dir={tmp_path}"]), held)
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_a_directory_with_nothing_but_a_lock_may_become_a_run(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / ".lock").touch()
    assert keep(load(["run=mine", f"runs_dir={tmp_path}"]))


def test_a_file_in_the_way_is_one_clear_line(tmp_path):
    (tmp_path / "mine").touch()
    for words in (["run=mine", f"runs_dir={tmp_path}"], ["run=x", f"runs_dir={tmp_path}/mine"]):
        with pytest.raises(UserError, match=r"is not a directory: give another run= or runs_dir="):
            keep(load(words))


def test_a_directory_that_cannot_be_written_is_one_clear_line(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    with pytest.raises(UserError, match=r"^.*/mine cannot be written \(Permission denied\): give .* runs_dir=$"):
        keep(load(["run=mine", f"runs_dir={tmp_path}"]))
