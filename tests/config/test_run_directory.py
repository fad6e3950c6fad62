"""The directory of a run: its settings, and its lock with real processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from engram.config import run_directory
from engram.config.load import load, load_run
from engram.config.run_directory import lock, prepare_directory
from engram.settings import UserError

HOLD = "import sys, pathlib; from engram.config.run_directory import lock; held = lock(pathlib.Path(sys.argv[1]));"
WAIT = "print('ready', flush=True); sys.stdin.read()"
FORK = "import os; os.fork() and sys.stdin.read();"  # the child is ready, and waits as well
SPAWN = "import subprocess; subprocess.Popen([sys.executable, '-c', 'input()'], close_fds=False);"


@pytest.fixture
def begun(tmp_path):
    """A run that has got as far as a checkpoint."""
    directory = prepare_directory(load(["run=mine", f"runs_dir={tmp_path}"]))
    (directory / "checkpoints" / "epoch_000001").mkdir(parents=True)
    return tmp_path


def test_settings_are_kept_in_the_runs_directory(tmp_path):
    settings = load(["run=mine", f"runs_dir={tmp_path}/deep/down", "seed=7"])
    assert prepare_directory(settings) == settings.directory
    assert load_run(settings.directory) == settings
    assert [file.name for file in settings.directory.iterdir()] == ["settings.yaml"]


def test_the_same_settings_go_on_with_a_run(begun):
    assert prepare_directory(load(["run=mine", f"runs_dir={begun}"]))


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
    assert load_run(prepare_directory(settings)) == settings


def test_other_settings_are_another_run_and_every_difference_is_named(begun):
    with pytest.raises(UserError) as caught:
        prepare_directory(
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
        prepare_directory(load(["run=mine", f"runs_dir={begun}", "env=recall"]))
    assert str(caught.value).splitlines()[0] == "env: recall, but tmaze when the run began"
    assert len(str(caught.value).splitlines()) == 2


def test_settings_of_a_run_without_a_checkpoint_can_be_corrected(tmp_path):
    prepare_directory(load(["run=mine", f"runs_dir={tmp_path}"]))
    assert load_run(prepare_directory(load(["run=mine", f"runs_dir={tmp_path}", "seed=7"]))).seed == 7


def test_a_copy_of_a_checkpoint_is_no_checkpoint(tmp_path):
    directory = prepare_directory(load(["run=mine", f"runs_dir={tmp_path}"]))
    (directory / "checkpoints" / "epoch_000001_backup").mkdir(parents=True)
    assert load_run(prepare_directory(load(["run=mine", f"runs_dir={tmp_path}", "seed=7"]))).seed == 7


def test_a_directory_that_is_not_a_run_is_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(UserError, match=r"mine exists and is not a run of Engram's: give another run="):
        prepare_directory(load(["run=mine", f"runs_dir={tmp_path}"]))


def test_a_directory_that_is_not_a_run_does_not_even_get_a_lock(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with ExitStack() as held, pytest.raises(UserError):
        prepare_directory(load(["run=mine", f"runs_dir={tmp_path}"]), held)
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_a_directory_with_nothing_but_a_lock_may_become_a_run(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / ".lock").touch()
    assert prepare_directory(load(["run=mine", f"runs_dir={tmp_path}"]))


def test_a_file_in_the_way_is_one_clear_line(tmp_path):
    (tmp_path / "mine").touch()
    for words in (["run=mine", f"runs_dir={tmp_path}"], ["run=x", f"runs_dir={tmp_path}/mine"]):
        with pytest.raises(UserError, match=r"is not a directory: give another run= or runs_dir="):
            prepare_directory(load(words))


def test_a_directory_that_cannot_be_written_is_one_clear_line(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    with pytest.raises(UserError, match=r"^.*/mine cannot be written \(Permission denied\): give .* runs_dir=$"):
        prepare_directory(load(["run=mine", f"runs_dir={tmp_path}"]))


@contextmanager
def holder(directory: Path, then: str = "") -> Iterator[subprocess.Popen]:
    """A process that holds the lock, and may have started another."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"{HOLD} {then} {WAIT}", str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process:  # closes its input, and so ends whatever it has started
        assert process.stdout.readline() == "ready\n"
        yield process


def test_a_second_process_is_told_which_one_trains(tmp_path) -> None:
    with holder(tmp_path) as first:
        with pytest.raises(UserError) as caught:
            lock(tmp_path)
        says = f"{tmp_path} is being trained by process {first.pid}: wait for it, stop it, or give another run="
        assert str(caught.value) == says
    lock(tmp_path).close()


@pytest.mark.parametrize("then", ["", FORK, SPAWN], ids=["nothing", "a fork", "a program"])
def test_a_lock_ends_with_a_process_that_is_killed_whatever_it_has_started(tmp_path, then: str) -> None:
    with holder(tmp_path, then) as first:
        os.kill(first.pid, signal.SIGKILL)
        os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
        lock(tmp_path).close()


def test_a_fork_that_ends_does_not_release_the_lock(tmp_path) -> None:
    then = "import os; child = os.fork(); child or os._exit(0); os.waitpid(child, 0);"
    with holder(tmp_path, then), pytest.raises(UserError):
        lock(tmp_path)


def test_who_trains_is_the_process_that_holds_the_lock_now(tmp_path) -> None:
    (tmp_path / ".lock").write_text("123456789\n")
    with lock(tmp_path):
        assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"


def test_a_system_or_a_file_system_without_locks_does_without(tmp_path, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(run_directory.fcntl, "flock", refuse)
    lock(tmp_path).close()
    monkeypatch.setattr(run_directory, "fcntl", None)
    lock(tmp_path).close()
