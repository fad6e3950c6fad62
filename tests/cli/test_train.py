"""`engram train` and `./tools/train.py`."""

import errno
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from support.running import RECALL, SMALL
from support.two_ranks import TIMEOUT, environment

from engram.cli.main import main
from engram.cli.train import next_steps
from engram.config.groups import GROUPS, choices
from engram.config.load import load, load_run
from engram.training.stop_signals import Terminated

ROOT = Path(__file__).resolve().parent.parent.parent
ENGRAM = [sys.executable, "-m", "engram"]
SEEDS = ["py_agent=fast", "run=test_fast", "trainer.total_timesteps=5000", "trainer.num_workers=2", "wandb=off"]


@pytest.fixture
def started(monkeypatch, tmp_path):
    """Replaces training: records its settings and returns, or raises `started.end`."""
    seen = SimpleNamespace(settings=None, end=None)

    def start(settings, display, *world, **options):
        seen.settings = settings
        if seen.end is not None:
            raise seen.end

    monkeypatch.setitem(sys.modules, "engram.training.run", SimpleNamespace(start=start))
    monkeypatch.chdir(tmp_path)
    return seen


@contextmanager
def training(*words: str) -> Iterator[subprocess.Popen]:
    """A process that trains until it is killed."""
    command = [*ENGRAM, "train", "trainer.total_timesteps=1000000000", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment()) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until(condition: Callable[[], object], process: subprocess.Popen) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_training_starts_with_the_settings_stored_with_the_run(started):
    assert main(["train", *SEEDS]) == 0
    assert started.settings == load(SEEDS) == load_run(Path("runs/test_fast"))


def test_a_wrong_setting_makes_no_directory_and_starts_nothing(started, capsys):
    assert main(["train", *SEEDS, "trainer.minibatch_size=1000"]) == 2
    output = "trainer.minibatch_size: 1000 is not a multiple of trainer.bptt_horizon (128): try 896 or 1024\n"
    assert capsys.readouterr().err == output
    assert started.settings is None
    assert not Path("runs").exists()


def test_an_unknown_environment_makes_no_directory(started, capsys):
    assert main(["train", *SEEDS, "env=gym", "env.id=CartPol-v1"]) == 2
    assert "CartPole-v1" in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.parametrize(("end", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
def test_the_message_of_a_stopped_run_is_printed(started, capsys, end, code):
    started.end = end("stopped; run the same command again to resume from epoch 3")
    assert main(["train"]) == code
    assert capsys.readouterr().err == "stopped; run the same command again to resume from epoch 3\n"


@pytest.mark.parametrize(("end", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
def test_a_run_stopped_before_training_has_a_general_message(started, capsys, end, code):
    started.end = end()
    assert main(["train"]) == code
    assert capsys.readouterr().err == "stopped; the same command resumes from the last checkpoint, if there is one\n"


@pytest.mark.parametrize(("sign", "code"), [(signal.SIGINT, 130), (signal.SIGUSR1, 138)])
def test_a_stop_signal_saves_the_run_after_its_epoch(tmp_path, sign, code):
    interval = "trainer.checkpoint.interval=1000000"
    with training(*RECALL, *SMALL, "run=x", f"runs_dir={tmp_path}", interval, "trainer.num_workers=1") as process:
        metrics = tmp_path / "x" / "metrics.jsonl"
        wait_until(lambda: metrics.exists() and metrics.stat().st_size, process)
        for each in [process, *psutil.Process(process.pid).children()]:  # as a scheduler does
            each.send_signal(sign)
        output = process.communicate(timeout=TIMEOUT)[1].decode()
    assert process.returncode == code
    assert output == "stopped and saved; run the same command again to resume from here\n"
    last = json.loads(metrics.read_text().splitlines()[-1])["epoch"]
    assert [path.name for path in (tmp_path / "x" / "checkpoints").glob("epoch_*")] == [f"epoch_{last:06d}"]


@pytest.mark.parametrize(("sign", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_group_that_is_signalled_as_a_whole_saves_its_runs(tmp_path, sign, code):
    interval = "trainer.checkpoint.interval=1000000"
    with training(*RECALL, *SMALL, "run=x", f"runs_dir={tmp_path}", interval, "seed=1,2") as process:
        metrics = tmp_path / "x_seed-1" / "metrics.jsonl"
        wait_until(lambda: metrics.exists() and metrics.stat().st_size, process)
        for each in [process, *psutil.Process(process.pid).children(recursive=True)]:  # as a terminal does
            each.send_signal(sign)
        process.communicate(timeout=TIMEOUT)
    assert process.returncode == code
    last = json.loads(metrics.read_text().splitlines()[-1])["epoch"]
    assert [path.name for path in (tmp_path / "x_seed-1" / "checkpoints").glob("epoch_*")] == [f"epoch_{last:06d}"]


def test_a_second_process_cannot_train_the_same_run(tmp_path, capsys):
    words = [*RECALL, *SMALL, "run=x", f"runs_dir={tmp_path}", "trainer.num_workers=1"]
    with training(*words) as first:
        metrics, settings = tmp_path / "x" / "metrics.jsonl", tmp_path / "x" / "settings.yaml"
        wait_until(lambda: metrics.exists() and metrics.stat().st_size, first)
        before = settings.stat().st_mtime_ns, settings.stat().st_ino
        assert main(["train", *words]) == 2
        shown = capsys.readouterr()
        assert shown.out == "run x: building fast on recall\n"
        assert shown.err == (
            f"{tmp_path}/x is being trained by process {first.pid}: wait for it, stop it, or choose a different run=\n"
        )
        assert (settings.stat().st_mtime_ns, settings.stat().st_ino) == before
        assert [path.name for path in (tmp_path / "x").glob(".*")] == [".lock"]
        first.kill()
    epochs = [json.loads(line)["epoch"] for line in metrics.read_text().splitlines()]
    assert epochs == list(range(1, len(epochs) + 1))
    assert main(["train", *words, "trainer.total_timesteps=1"]) == 0  # a killed process leaves no lock


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        PermissionError(errno.EACCES, "Permission denied", "runs/fast_tmaze/log.txt"),
    ],
)
def test_a_run_directory_that_cannot_be_written_is_a_one_line_message(started, capsys, error):
    started.end = error
    assert main(["train"]) == 2
    assert capsys.readouterr().err == (
        f"runs/fast_tmaze cannot be written ({error.strerror}): give a writable one with runs_dir=\n"
    )


@pytest.mark.parametrize(
    "error", [MemoryError("Unable to allocate 9 TiB"), RuntimeError("DefaultCPUAllocator: can't allocate memory: 9")]
)
def test_a_run_that_does_not_fit_into_memory_ends_with_a_message(started, capsys, error) -> None:
    started.end = error
    assert main(["train", *RECALL]) == 2
    assert capsys.readouterr().err.startswith("not enough memory (")


def test_an_os_error_elsewhere_is_raised(started):
    started.end = FileNotFoundError(errno.ENOENT, "No such file", "/somewhere/else")
    with pytest.raises(FileNotFoundError):
        main(["train"])


def test_the_offered_commands_are_valid_and_change_the_run_as_described():
    evaluation, *rest = next_steps(SEEDS, load(SEEDS), False, steps_done=4096)
    assert evaluation.endswith("engram eval run=test_fast")
    longer, without = (command.split()[2:] for command in rest)
    assert load(longer) == load([*SEEDS, "trainer.total_timesteps=10000"])
    assert load(without) == load([*SEEDS, "run=test_fast_no_memory", "trainer.memory=off"])
    assert len(next_steps(without, load(without), False, steps_done=8192)) == 2


def test_a_resumed_run_offers_no_run_without_memory():
    assert len(next_steps(["run=mine"], load(["run=mine"]), True, steps_done=4096)) == 2


def test_training_for_longer_exceeds_the_steps_done():
    words = ["run=mine", "trainer.total_timesteps=1000"]
    assert next_steps(words, load(words), False, steps_done=4096)[1].endswith(
        " train run=mine trainer.total_timesteps=8192"
    )


@pytest.mark.parametrize("found", ["/usr/bin/engram", None])
def test_the_offered_commands_call_engram_by_a_path_that_works(monkeypatch, tmp_path, found):
    monkeypatch.setattr(shutil, "which", lambda _: found)
    monkeypatch.setattr(sys, "argv", ["engram"])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "my programs" / "python"))
    monkeypatch.chdir(tmp_path)
    commands = [shlex.split(command)[0] for command in next_steps(SEEDS, load(SEEDS), False, steps_done=4096)]
    assert commands == ["engram" if found else "my programs/engram"] * 3


def test_runs_of_the_script_offer_the_script(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["./tools/train.py"])
    _, *rest = next_steps(SEEDS, load(SEEDS), False, steps_done=4096)
    assert all(command.startswith("./tools/train.py py_agent=fast ") for command in rest)


def test_the_offered_evaluation_names_the_directory_of_runs():
    settings = load(["run=mine", "runs_dir=/some where"])
    assert next_steps([], settings, False, steps_done=4096)[0].endswith("engram eval run=mine runs_dir='/some where'")


def test_help_lists_every_group_with_its_choices(capsys):
    assert main(["train", "--help"]) == 0
    output = capsys.readouterr().out
    for group, meaning in GROUPS.items():
        assert f"  {group}: {meaning}" in output
        assert all(re.search(rf"{re.escape(name)} +{re.escape(text)}", output) for name, text in choices(group).items())
    assert "trainer.optimizer.learning_rate=0.001" in output


def test_the_examples_in_the_help_are_valid(capsys):
    main(["train", "--help"])
    examples = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("  engram train ")]
    assert len(examples) > 2
    for _, _, *words in examples:
        assert load([word.replace("my_policy.py", "my_policy") for word in words])


def test_the_script_runs_from_anywhere_with_the_projects_own_python(tmp_path):
    script = ROOT / "tools" / "train.py"
    result = subprocess.run([str(script), "sed=1"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (result.returncode, result.stderr) == (2, "sed: no such option; did you mean seed?\n")


def test_the_script_says_how_to_install_what_is_missing(tmp_path):
    (tmp_path / "tools").mkdir()
    script = shutil.copy(ROOT / "tools" / "train.py", tmp_path / "tools")
    words = [sys.executable, "-S", "-E", script]  # without site-packages nothing is installed
    result = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith("Engram is not installed for this Python")
    assert result.stderr.endswith(f"run `make install` in {tmp_path}\n")


def test_next_steps_are_offered_even_if_the_current_folder_was_removed(tmp_path, monkeypatch):
    settings = load(SEEDS)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert " eval run=" in next_steps(SEEDS, settings, False, steps_done=4096)[0]
