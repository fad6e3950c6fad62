"""Every command and every Python block of the documentation works, and the site builds without warnings."""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import engram
from engram.api import train as training
from engram.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TINY = {"trainer.num_envs": 4, "trainer.bptt_horizon": 8, "trainer.batch_size": 64, "trainer.minibatch_size": 32}
CLASSES = """
import gymnasium
from torch import nn
import engram
from api.echo import Room as MyEnv
from api.tiny import Small as MyPolicy
"""
TRAINED = 'engram.train("recall", total_timesteps=64, run="first")\n'
# What readers have before a page's first block, and what each page's blocks need beside that.
PREPARED = {
    "README.md": "import engram\nimport numpy as np\nfrom torch import nn\nobservation = np.zeros(4, np.float32)\n",
    "docs/index.md": "",
    "docs/coming-from.md": "",
    "docs/collapsed.md": "",
    "docs/evaluation.md": "import engram\n" + TRAINED,
    "docs/python.md": CLASSES + 'engram.train("CartPole-v1", run="pole")\nstate, start = None, True\n',
}
ELSEWHERE = {  # pages whose blocks other tests run
    "docs/audit.md": "tests/audit/test_documented.py",
    "docs/policies.md": "tests/audit/test_documented.py",
    "docs/environments.md": "tests/env/test_documented.py",
    "docs/export.md": "tests/export/test_write.py",
    "docs/tutorial.md": "below",
}


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [code for found, code in BLOCK.findall(text) if found == language]


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """`engram.train` with a tiny budget, in an empty folder."""
    train = training.train

    def short(*arguments: Any, **settings: Any) -> Any:
        return train(*arguments, **{**settings, "total_timesteps": 128, "progress": False}, **TINY)

    monkeypatch.setattr(training, "train", short)
    monkeypatch.chdir(tmp_path)


def test_links_and_commands_are_valid(capsys):
    spec = importlib.util.spec_from_file_location("check", ROOT / "docs" / "check.py")
    check = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check)
    assert check.main() == 0, capsys.readouterr().out


def test_every_page_with_python_is_run():
    pages = [str(page.relative_to(ROOT)) for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))]
    assert {page for page in pages if blocks(page, "python")} == {*PREPARED, *ELSEWHERE}


@pytest.mark.slow
@pytest.mark.parametrize("page", PREPARED)
def test_the_python_of_a_page_runs(page, tiny):
    exec(compile("\n".join([PREPARED[page], *blocks(page, "python")]), page, "exec"), {"__name__": "page"})


@pytest.mark.slow
def test_the_tutorial_runs_as_printed(tmp_path, monkeypatch, capsys):
    environment, loop, loader = blocks("docs/tutorial.md", "python")
    (tmp_path / "corridor.py").write_text(environment, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    commands = [line for block in blocks("docs/tutorial.md", "sh") for line in block.splitlines()]
    assert [command.split()[1] for command in commands] == [
        "check-env", "train", "train", "compare", "replay", "memory", "audit", "export"
    ]  # fmt: skip
    small = {"compare": ["episodes=8"], "memory": ["episodes=8"], "audit": ["--only", "detachment"]}
    for command in commands:
        _, verb, *words = shlex.split(command.replace("40_960", "1024").replace(" --open", ""))
        assert main([verb, *words, *small.get(verb, [])]) == 0, command
    exec(compile(loop, "tutorial", "exec"), {})
    assert "reward" in capsys.readouterr().out
    found: dict[str, Any] = {}
    exec(compile(loader, "tutorial", "exec"), found)
    assert found["action"][0] in range(3)


def test_the_api_reference_has_every_name():
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\.\. auto\w+:: engram\.(\w+)", text, re.MULTILINE)
    assert sorted([*documented, "__version__"]) == sorted(engram.__all__)


def test_the_settings_reference_comes_from_the_models(monkeypatch):
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import settings_tables

    rows = {name: row for model in settings_tables.MODELS.values() for name, *row in settings_tables.rows(*model)}
    assert rows["trainer.ppo.gamma"] == ["number ≥ 0 ≤ 1", "`0.99`", "discount factor"]
    assert rows["trainer.memory"][0] == "`carry`, `reset`, `off`"
    assert "delay ± jitter" in rows["env.delay_jitter"][2]
    assert rows["py_agent.previous"][2].startswith("`[action]`, `[reward]` or")
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\{settings\} (\w+)", page)) == {*settings_tables.MODELS}


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path):
    pytest.importorskip("furo")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert "total_timesteps" in (tmp_path / "settings.html").read_text(encoding="utf-8")
