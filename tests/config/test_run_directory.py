"""The directory of a run: its settings, and its lock with real processes."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from engram.config import run_directory
from engram.config.load import describe_run, load, load_run
from engram.config.run_directory import is_locked, lock, prepare_directory
from engram.settings import UserError

HOLD = "import sys, pathlib; from engram.config.run_directory import lock; held = lock(pathlib.Path(sys.argv[1]));"
WAIT = "print('ready', flush=True); sys.stdin.read()"
FORK = "import os; os.fork() and sys.stdin.read();"  # the child prints and waits as well
SPAWN = "import subprocess; subprocess.Popen([sys.executable, '-c', 'input()'], close_fds=False);"


@pytest.fixture
def begun(tmp_path):
    """The directory of a run with a checkpoint."""
    directory = prepare_directory(load(["run=mine", f"runs_dir={tmp_path}"]))
    (directory / "checkpoints" / "epoch_000001").mkdir(parents=True)
    return tmp_path


def test_settings_are_stored_in_the_runs_directory(tmp_path):
    settings = load(["run=mine", f"runs_dir={tmp_path}/deep/down", "seed=7"])
    assert prepare_directory(settings) == settings.directory
    assert load_run(settings.directory) == settings
    assert [file.name for file in settings.directory.iterdir()] == ["settings.yaml"]


def test_the_same_settings_resume_a_run(begun):
    assert prepare_directory(load(["run=mine", f"runs_dir={begun}"]))


def test_some_settings_may_change_on_resume(begun):
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


def test_other_changes_are_refused_and_all_of_them_named(begun):
    with pytest.raises(UserError) as caught:
        prepare_directory(
            load(
                ["run=mine", f"runs_dir={begun}", "seed=7", "trainer.ppo.gamma=0.5", "py_agent.option=3", "device=cpu"]
            )
        )
    assert str(caught.value).splitlines() == [
        "seed: 7, but 1 when the run began",
        "py_agent.option: 3, but null when the run began",
        "trainer.ppo.gamma: 0.5, but 0.99 when the run began",
        f"{begun}/mine is a different run: choose a different run=, or give the settings it began with",
    ]
    assert load_run(begun / "mine").seed == 1


def test_another_environment_is_a_single_difference(begun):
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
    with pytest.raises(UserError, match=r"mine exists and is not a run of Engram's: choose a different run="):
        prepare_directory(load(["run=mine", f"runs_dir={tmp_path}"]))


def test_a_directory_that_is_not_a_run_gets_no_lock(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with ExitStack() as stack, pytest.raises(UserError):
        prepare_directory(load(["run=mine", f"runs_dir={tmp_path}"]), stack)
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_a_directory_with_nothing_but_a_lock_may_become_a_run(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / ".lock").touch()
    assert prepare_directory(load(["run=mine", f"runs_dir={tmp_path}"]))


def test_a_file_in_place_of_the_directory_is_an_error(tmp_path):
    (tmp_path / "mine").touch()
    for words in (["run=mine", f"runs_dir={tmp_path}"], ["run=x", f"runs_dir={tmp_path}/mine"]):
        with pytest.raises(UserError, match=r"is not a directory: choose a different run= or runs_dir="):
            prepare_directory(load(words))


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    with pytest.raises(UserError, match=r"^.*/mine cannot be written \(Permission denied\): give .* runs_dir=$"):
        prepare_directory(load(["run=mine", f"runs_dir={tmp_path}"]))


@contextmanager
def holder(directory: Path, then: str = "") -> Iterator[subprocess.Popen]:
    """A process that holds the lock and may have started another."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"{HOLD} {then} {WAIT}", str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process:  # closes its input, which also ends what it has started
        assert process.stdout.readline() == "ready\n"
        yield process


def test_the_error_names_the_process_that_holds_the_lock(tmp_path) -> None:
    with holder(tmp_path) as first:
        with pytest.raises(UserError) as caught:
            lock(tmp_path)
        says = f"{tmp_path} is being trained by process {first.pid}: wait for it, stop it, or choose a different run="
        assert str(caught.value) == says
    lock(tmp_path).close()


@pytest.mark.parametrize("then", ["", FORK, SPAWN], ids=["nothing", "a fork", "a program"])
def test_a_killed_process_releases_the_lock_even_if_its_children_live(tmp_path, then: str) -> None:
    with holder(tmp_path, then) as first:
        os.kill(first.pid, signal.SIGKILL)
        os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
        lock(tmp_path).close()


def test_a_fork_that_ends_does_not_release_the_lock(tmp_path) -> None:
    then = "import os; child = os.fork(); child or os._exit(0); os.waitpid(child, 0);"
    with holder(tmp_path, then), pytest.raises(UserError):
        lock(tmp_path)


def test_the_lock_file_names_the_current_holder(tmp_path) -> None:
    (tmp_path / ".lock").write_text("123456789\n")
    with lock(tmp_path):
        assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"


def test_systems_and_file_systems_without_locks_work(tmp_path, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(run_directory.fcntl, "flock", refuse)
    lock(tmp_path).close()
    monkeypatch.setattr(run_directory, "fcntl", None)
    lock(tmp_path).close()


@pytest.mark.parametrize("name", ["log.txt", "metrics.jsonl", ".lock", "checkpoints", "tensorboard/events", "fifo"])
def test_nothing_outside_of_the_directory_is_written(begun, tmp_path, name) -> None:
    secret = tmp_path / "secret"
    secret.write_text("mine")
    path = begun / "mine" / name
    path.parent.mkdir(exist_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    if name == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(secret)
    with ExitStack() as stack, pytest.raises(UserError, match=r"outside of .*remove it|neither a file nor"):
        prepare_directory(load(["run=mine", f"runs_dir={begun}"]), stack)
    assert secret.read_text() == "mine"


@pytest.mark.parametrize("name", ["log.txt", ".lock", "settings.yaml", "tensorboard/events"])
def test_a_file_that_is_also_outside_of_the_directory_is_not_written(begun, tmp_path, name) -> None:
    secret, path = tmp_path / "secret", begun / "mine" / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    path.rename(secret)
    path.hardlink_to(secret)
    with ExitStack() as stack, pytest.raises(UserError, match=rf"{name} has 2 hard links.*replace it with a copy"):
        prepare_directory(load(["run=mine", f"runs_dir={begun}"]), stack)


def test_checkpoints_may_share_their_files_with_a_backup(begun, tmp_path) -> None:
    path = begun / "mine" / "checkpoints" / "epoch_000001" / "state.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    (tmp_path / "backup").hardlink_to(path)
    prepare_directory(load(["run=mine", f"runs_dir={begun}"]))


def test_a_renamed_run_resumes(begun) -> None:
    (begun / "mine").rename(begun / "other")
    assert describe_run(prepare_directory(load(["run=other", f"runs_dir={begun}"]))).run == "other"


def test_a_lock_that_is_a_fifo_is_not_waited_for(tmp_path) -> None:
    os.mkfifo(tmp_path / ".lock")
    assert not is_locked(tmp_path)


@pytest.mark.parametrize("name", ["checkpoints", "metrics.jsonl", "log.txt", "plan.json", ".lock"])
def test_a_file_in_the_place_of_a_folder_or_the_reverse_is_refused_at_once(tmp_path, name) -> None:
    settings = load(["run=mine", f"runs_dir={tmp_path}"])
    path = prepare_directory(settings) / name
    path.write_text("x") if name == "checkpoints" else path.mkdir()
    with pytest.raises(UserError, match=rf"{name} is a (file|directory), expected a (file|directory): remove it"):
        prepare_directory(settings)


def test_stored_settings_survive_a_power_failure(tmp_path, monkeypatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(run_directory, "sync", lambda path: synced.append(path.name))
    prepare_directory(load(["run=mine", f"runs_dir={tmp_path}"]))
    assert [name.partition(".yaml")[0] for name in synced] == [".settings", "mine"]
