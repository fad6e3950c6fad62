"""Full, read-only and removed directories: nothing is lost that can be kept, and nothing half-written is left."""

import errno
import json
import logging
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from support import running

from engram.config.load import describe_run, load
from engram.config.run_directory import LOCK_FILE, lock, prepare_directory, restore_directory
from engram.settings import UserError
from engram.training import loop
from engram.training.checkpoint import checkpoints
from engram.training.checkpoint.files import load_latest
from engram.training.metrics import MetricsFile
from engram.training.run import start
from engram.training.storage import DiskError, LineFile, Storage, log_to


class Meddler(running.Silent):
    """A display that changes the disk after some epochs."""

    def __init__(self, by_epoch: dict[int, Callable[[], object]]) -> None:
        super().__init__()
        self.by_epoch = by_epoch

    def update(self, record) -> None:
        self.by_epoch.get(record["epoch"], lambda: None)()


class Disk:
    """A small file system, or a limit on the size of files."""

    def __init__(self, path: Path, mounted: bool) -> None:
        self.path, self.mounted = path, mounted
        self._stack = ExitStack()

    def fill(self) -> None:
        if not self.mounted:
            self._stack.enter_context(no_growing_files())
            return
        with (self.path / "filler").open("wb", buffering=0) as file:
            for size in (4096, 1):
                try:
                    while file.write(bytes(size)):
                        pass
                except OSError:
                    pass

    def free(self) -> None:
        (self.path / "filler").unlink(missing_ok=True)
        self._stack.close()


@contextmanager
def no_growing_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def mount(path: Path) -> bool:
    path.mkdir()
    return not subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "x", path], capture_output=True).returncode


@pytest.fixture
def disk(tmp_path) -> Iterator[Disk]:
    made = Disk(tmp_path / "disk", mount(tmp_path / "disk"))
    yield made
    made.free()
    log_to(None, print)  # closes the log
    if made.mounted:
        subprocess.run(["umount", made.path], check=True)


def run(directory: Path, display: running.Silent, epochs: int, *words: str):
    """As the command line does it: locked, and able to recreate its directory."""
    settings = load(
        [
            *running.RECALL,
            *running.SMALL,
            f"trainer.total_timesteps={epochs * running.BATCH}",
            f"runs_dir={directory}",
            "run=x",
            *words,
        ]
    )
    with ExitStack() as stack:
        prepare_directory(settings, stack)
        return start(settings, display, restore_directory=partial(restore_directory, settings, stack))


def epochs_in(directory: Path) -> list[int]:
    return [record["epoch"] for record in running.metrics(directory)]


def newest(directory: Path) -> int:
    checkpoint, problems = load_latest(directory / "x" / "checkpoints")
    assert checkpoint is not None
    assert not problems
    return checkpoint.state["progress"]["epoch"]


def test_a_full_disk_loses_nothing_once_space_is_free_again(disk, tmp_path) -> None:
    display = Meddler({2: disk.fill, 5: disk.free})
    run(disk.path, display, 6)
    assert epochs_in(disk.path) == [1, 2, 3, 4, 5, 6]
    assert newest(disk.path) == 6
    assert not list((disk.path / "x" / "checkpoints").glob(".*"))
    warnings = [message for message in display.messages if "cannot be written" in message]
    assert len(warnings) == 1  # not one for each epoch
    assert "Training continues" in warnings[0]
    log = running.log(disk.path)
    assert "cannot be written" in log
    assert "can be written again" in log
    running.run(tmp_path, epochs=6)
    assert running.metrics(disk.path) == running.metrics(tmp_path)


def test_while_the_disk_is_full_the_last_checkpoint_stays_whole_and_then_the_run_stops(disk, monkeypatch) -> None:
    monkeypatch.setattr(loop, "RETRY_SECONDS", 0.01)
    with pytest.raises(DiskError, match=r"could not be written for .*trainer\.disk_timeout.* resumes") as caught:
        run(disk.path, Meddler({3: disk.fill}), 6, "trainer.disk_timeout=0.05")
    assert caught.value.exit_code == 1
    assert newest(disk.path) in (2, 3)
    disk.free()
    run(disk.path, running.Silent(), 6)
    assert epochs_in(disk.path) == [1, 2, 3, 4, 5, 6]


def test_what_cannot_be_written_is_named_as_the_user_knows_it(tmp_path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(MetricsFile, "write", full)
    display = running.Silent()
    run(tmp_path, display, 1)
    assert any("metrics.jsonl cannot be written (No space" in message for message in display.messages)


def test_a_stop_waits_for_a_full_disk_only_for_a_while(disk) -> None:
    waited = iter([False, False])
    storage = Storage(disk.path, 600, give_up=lambda: next(waited, True))
    disk.fill()
    assert not storage.attempt("the checkpoint", lambda: (disk.path / "x").write_bytes(bytes(5000)))
    assert not storage.attempt("the checkpoint", lambda: (disk.path / "x").write_bytes(bytes(5000)))
    with pytest.raises(KeyboardInterrupt):
        storage.attempt("the checkpoint", lambda: (disk.path / "x").write_bytes(bytes(5000)))


def test_metrics_are_on_the_disk_before_their_checkpoint(tmp_path, monkeypatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(checkpoints, "sync", lambda path: synced.append(path.read_bytes().count(b"\n")))
    run(tmp_path, running.Silent(), 4, "trainer.checkpoint.interval=2")
    assert synced == [2, 4]


def test_the_plan_is_written_again_if_it_was_removed(tmp_path) -> None:
    display = Meddler({2: lambda: shutil.rmtree(tmp_path / "x")})
    run(tmp_path, display, 5)
    left = {path.name for path in (tmp_path / "x").iterdir()}
    assert left == {".lock", "settings.yaml", "plan.json", "metrics.jsonl", "log.txt", "checkpoints"}
    assert epochs_in(tmp_path) == [1, 2, 3, 4, 5]


def test_a_read_only_disk_is_only_a_pause(disk) -> None:
    if not disk.mounted:
        pytest.skip("only root can make a file system read-only")

    def remount(mode: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{mode}", disk.path], capture_output=True)

    storage = Storage(disk.path, 60)

    def write(line: str) -> None:
        lines = LineFile(disk.path / "lines")
        lines.write(line)
        lines.close()

    write("1")
    remount("ro")
    assert not storage.attempt("lines", partial(write, "2"))
    remount("rw")
    assert storage.attempt("lines", partial(write, "2"))
    assert (disk.path / "lines").read_text() == "1\n2\n"


@pytest.mark.parametrize("what", ["everything", "files", "lock"])
def test_files_removed_during_a_run_are_recreated(tmp_path, what: str) -> None:
    directory = tmp_path / "x"

    def remove() -> None:
        if what == "everything":
            shutil.rmtree(directory)
        for name in {"files": ("settings.yaml", "metrics.jsonl", "log.txt"), "lock": (LOCK_FILE,)}.get(what, ()):
            (directory / name).unlink()

    run(tmp_path, Meddler({2: remove}), 4)
    assert epochs_in(tmp_path) == [1, 2, 3, 4]
    assert newest(tmp_path) == 4
    assert describe_run(directory).run == "x"
    assert "done:" in running.log(tmp_path)
    assert "parameters" in running.log(tmp_path)  # the first line too
    assert (directory / LOCK_FILE).exists()


def test_a_run_stops_if_another_process_trains_in_its_directory(tmp_path) -> None:
    directory, held = tmp_path / "x", []

    def steal() -> None:
        (directory / LOCK_FILE).unlink()
        held.append(open(directory / LOCK_FILE, "a+"))  # noqa: SIM115
        import fcntl

        fcntl.flock(held[0], fcntl.LOCK_EX)

    with pytest.raises(UserError, match="is being trained by"):
        run(tmp_path, Meddler({2: steal}), 4)
    held[0].close()
    lock(directory).close()


def test_no_partial_line_is_left(disk) -> None:
    lines = LineFile(disk.path / "lines")
    lines.write("first")
    disk.fill()
    for text in ("second", "third"):
        with pytest.raises(OSError, match=r"No space|too large"):
            lines.write(text * 1000)
    assert (disk.path / "lines").read_text() == "first\n"
    disk.free()
    lines.write("fourth")
    assert [line[:6] for line in (disk.path / "lines").read_text().splitlines()] == [
        "first",
        "second",
        "thirdt",
        "fourth",
    ]
    lines.close()


def test_damaged_metrics_are_cut_off_and_never_raise(tmp_path) -> None:
    good = [json.dumps({"epoch": epoch}) + "\n" for epoch in (1, 2)]
    for bad in (
        "3\n",
        "[]\n",
        "{}\n",
        "null\n",
        '{"epoch": "x"}\n',
        '{"epoch": [1]}\n',
        "[" * 100_000 + "\n",
        "9" * 5000,
    ):
        path = tmp_path / "metrics.jsonl"
        path.write_text("".join([*good, bad]))
        MetricsFile.truncate(path, 5)
        assert path.read_text() == "".join(good)


def test_other_errors_are_not_treated_as_disk_errors(tmp_path) -> None:
    with pytest.raises(ZeroDivisionError):
        Storage(tmp_path, 60).attempt("x", lambda: 1 / 0)


def test_lines_that_found_no_room_are_written_when_the_file_is_closed(tmp_path, monkeypatch) -> None:
    lines = LineFile(tmp_path / "lines")
    lines.write("one")
    with monkeypatch.context() as full:
        full.setattr("engram.training.storage._write_all", no_room)
        for line in ("two", "three"):
            with pytest.raises(OSError, match="No space"):
                lines.write(line)
    lines.close()
    assert (tmp_path / "lines").read_text() == "one\ntwo\nthree\n"


def no_room(file, content) -> None:
    raise OSError(28, "No space left on device")


def test_an_environment_that_changes_the_working_directory_does_not_move_the_run(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    storage, lines = Storage(Path("x"), timeout=1.0), LineFile(Path("lines.txt"))
    monkeypatch.chdir("/")
    lines.write("one")
    lines.close()
    assert storage.attempt("a file", lambda: Path("x/file").write_text("whole"))
    assert (tmp_path / "lines.txt").read_text() == "one\n"
    assert (tmp_path / "x" / "file").read_text() == "whole"


def test_a_current_folder_that_was_removed_and_made_again_is_written_again(tmp_path, monkeypatch) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    storage = Storage(Path("x"), timeout=10.0)
    folder.rmdir()
    assert not storage.attempt("a file", lambda: Path("x/file").write_text("whole"))
    folder.mkdir()
    assert storage.attempt("a file", lambda: Path("x/file").write_text("whole"))
    assert (folder / "x" / "file").read_text() == "whole"


def test_warnings_are_shown_without_control_characters_and_cut_short(tmp_path) -> None:
    said: list[str] = []
    log_to(tmp_path / "log.txt", said.append)
    logging.getLogger("engram").warning("\x1b[2Jw" + "w" * 100_000)
    log_to(None, print)
    (line,) = said
    assert line.startswith("\ufffd[2Jww")
    assert len(line) < 2000
