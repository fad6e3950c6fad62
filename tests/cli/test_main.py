"""The `engram` command."""

import io
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support import running

from engram import __version__
from engram.cli.main import VERBS, choose_wait_policy, main
from engram.settings import UserError

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_help_lists_every_verb(words, capsys):
    assert main(words) == 0
    output = capsys.readouterr().out
    assert all(f"  {verb} " in output for verb in VERBS)


class Terminal(io.TextIOWrapper):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("words", "title", "text"),
    [
        ([], "engram ─", "loading …"),
        (["env=recall", "run=first", "seed=2"], "engram first ─", "loading env=recall seed=2 …"),
        (["run=" + "a" * 200, "b" * 200, "\x1b[2J", "ö"], f"engram {'a' * 67}… ╮", f"loading {'b' * 67}… │"),
    ],
)
def test_a_terminal_shows_run_and_settings_before_anything_heavy_is_imported(words, title, text, monkeypatch):
    shown_before: dict[str, str] = {}
    screen = Terminal(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")

    def record(name):
        shown_before[name] = screen.buffer.getvalue().decode()
        raise UserError("stop here")

    monkeypatch.setattr("engram.cli.main.import_module", record)
    assert main(["train", *words]) == 2
    lines = shown_before["engram.cli.train"].splitlines()
    assert lines[0].startswith(f"╭─ {title}")
    assert lines[0].endswith("╮")
    assert lines[1].startswith(f"│ {text}")
    assert len({len(line) for line in lines}) == 1
    assert screen.buffer.getvalue().decode().endswith("╯\n\x1b[3A\r\x1b[J")  # removed again


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"engram {__version__}\n"


def test_a_mistyped_verb_gets_the_nearest(capsys):
    assert main(["trian"]) == 2
    assert capsys.readouterr().err.startswith("engram: no verb 'trian'; did you mean train?")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb, capsys):
    assert main([verb, "--help"]) == 0
    assert capsys.readouterr().out.lower().startswith(f"usage: engram {verb} ")


@pytest.mark.parametrize(
    ("raised", "code", "output"),
    [(UserError("seed: wrong"), 2, "seed: wrong\n"), (KeyboardInterrupt(), 130, "stopped\n")],
)
def test_mistakes_and_interrupts_become_a_message_and_an_exit_code(raised, code, output, capsys, monkeypatch):
    def fail(words):
        raise raised

    monkeypatch.setattr("engram.cli.validate.main", fail)
    assert main(["validate"]) == code
    assert capsys.readouterr().err == output


def test_sigterm_shuts_down_like_an_interrupt(capsys, monkeypatch):
    def end(words):
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("engram.cli.validate.main", end)
    assert main(["validate"]) == 143
    assert capsys.readouterr().err == "stopped\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_sigterm_does_not_disturb_the_shutdown(monkeypatch):
    cleaned_up = []

    def end(words):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            cleaned_up.append(True)

    monkeypatch.setattr("engram.cli.validate.main", end)
    assert main(["validate"]) == 143
    assert cleaned_up


def test_other_errors_are_raised(monkeypatch):
    def fail(words):
        raise RuntimeError("a bug")

    monkeypatch.setattr("engram.cli.validate.main", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["validate"])


def test_mistakes_are_reported_before_torch_is_imported():
    code = "import sys; from engram.cli.main import main; print(main(sys.argv[1:]), 'torch' in sys.modules)"
    words = [sys.executable, "-c", code, "train", "trainer.learning_rte=3", "seed=x"]
    result = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=True)
    assert result.stdout == "2 False\n"
    assert result.stderr.splitlines() == [
        "trainer.learning_rte: no such option; did you mean trainer.optimizer.learning_rate?",
        "seed: 'x' is not a whole number",
    ]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_is_no_error(unbuffered):
    command = f"{sys.executable} -m engram train --help | true"
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    words = ["sh", "-c", command]
    result = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=True, env=environment)
    assert result.stderr == ""


USER_MODULE = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
from pettingzoo import ParallelEnv

gymnasium.register("Pole-v0", CartPoleEnv, max_episode_steps=20)

class Wrapped(gymnasium.Wrapper):
    pass

class Duel(ParallelEnv):
    possible_agents = ["a", "b"]

    def reset(self, seed=None, options=None):
        return {agent: [0.0, 1.0] for agent in self.possible_agents}, {}

    def observation_space(self, agent):
        return gymnasium.spaces.Box(0, 1, (2,))

    def action_space(self, agent):
        return gymnasium.spaces.Discrete(2)
"""
USER_POLICY = """
from torch import nn
from engram import LSTMWrapper

class Mine(LSTMWrapper):
    def __init__(self, env, **kwargs):
        super().__init__(env, input_size=4, hidden_size=4)
        self.actor, self.critic = nn.Linear(4, 2), nn.Linear(4, 1)

    def encode_observations(self, observations):
        return observations

    def decode_actions(self, hidden):
        return self.actor(hidden), self.critic(hidden)
"""
POLE = ("env=gym", "env.id=user_module:Pole-v0", "env.wrappers=[user_module:Wrapped]")


def run_in(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run the installed command, for which Python does not search the current folder."""
    code = "import sys; from engram.cli.main import main; sys.exit(main(sys.argv[1:]))"
    words = (sys.executable, "-P", "-c", code, *words)
    return subprocess.run(words, capture_output=True, text=True, cwd=folder, check=False)


@pytest.mark.parametrize("env", [POLE, ("env=pettingzoo", "env.module=user_module:Duel")], ids=["gym", "pettingzoo"])
def test_environments_and_wrappers_in_the_current_folder_are_found(tmp_path, env):
    (tmp_path / "user_module.py").write_text(USER_MODULE)
    result = run_in(tmp_path, "validate", *env)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_policy_in_the_current_folder_trains_with_workers(tmp_path):
    (tmp_path / "user_module.py").write_text(USER_MODULE)
    (tmp_path / "user_policy.py").write_text(USER_POLICY)
    sizes = ("num_envs=2", "num_workers=1", "bptt_horizon=8", "batch_size=32", "minibatch_size=16")
    words = [f"trainer.{size}" for size in (*sizes, "total_timesteps=64")]
    result = run_in(tmp_path, "train", "py_agent=user_policy:Mine", *POLE, *words, "device=cpu", "run=x")
    assert result.returncode == 0, result.stderr


def test_files_in_the_current_folder_replace_no_package(tmp_path):
    for name in ("gymnasium", "shlex"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not the real one')")
    assert run_in(tmp_path, "validate", "env=gym", "env.id=CartPole-v1").returncode == 0


@pytest.fixture
def environment(monkeypatch):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(("percent", "policy"), [(0.0, None), (10.0, None), (50.0, "PASSIVE"), (100.0, "PASSIVE")])
def test_idle_threads_sleep_on_a_busy_machine(environment, percent, policy):
    environment.setattr(psutil, "cpu_percent", lambda interval: percent)
    environment.setattr(psutil, "cpu_count", lambda: 2)
    choose_wait_policy()
    assert os.environ.get("OMP_WAIT_POLICY") == policy


@pytest.mark.parametrize(("name", "value"), [("OMP_WAIT_POLICY", "ACTIVE"), ("GOMP_SPINCOUNT", "1000")])
def test_a_wait_policy_set_by_the_user_stays(environment, name, value):
    environment.setenv(name, value)
    environment.setattr(psutil, "cpu_percent", lambda interval: 100.0)
    choose_wait_policy()
    assert os.environ[name] == value
    assert os.environ.get("OMP_WAIT_POLICY") == (value if name == "OMP_WAIT_POLICY" else None)


def test_a_current_folder_that_was_removed_gets_a_message(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["runs"]) == 2
    assert capsys.readouterr().err == "the current folder was removed: change to one that exists (cd)\n"


@pytest.mark.parametrize(
    "words",
    [["eval", "x"], ["audit", "x"], ["compare", "x", "y"], ["train", "run=x"], ["train", "run=z", "init_from=runs/x"]],
)
def test_a_damaged_checkpoint_is_refused_before_torch_is_imported(words, tmp_path):
    for name in ("x", "y"):
        running.run(tmp_path / "runs", name=name, epochs=1)
        shutil.rmtree(tmp_path / "runs" / name / "checkpoints" / "best", ignore_errors=True)
        path = tmp_path / "runs" / name / "checkpoints" / "epoch_000001" / "weights.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    code = f"import sys; from engram.cli.main import main; print(main({words}), 'torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "2 False"
    assert "weights.safetensors has changed since it was written" in found.stderr
