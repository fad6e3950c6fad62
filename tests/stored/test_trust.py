"""A stranger's run never runs code; one's own runs open as before."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from support import running

from engram.cli import main as cli
from engram.config.load import load, load_run
from engram.env.settings import Recall
from engram.stored.trust import UntrustedCodeError, code_named_in
from engram.training.kickstart import load_teacher
from engram.training.settings import Kickstart

POLICY = """
from pathlib import Path
from engram.agent.policies.fast import Fast
Path({touched!r}).touch()
class Mine(Fast):
    pass
"""


@pytest.fixture
def touched(tmp_path) -> Path:
    """Exists once the policy's file was run."""
    return tmp_path / "touched"


@pytest.fixture
def own(tmp_path, monkeypatch, touched) -> Path:
    """The directory of a run with a policy of the user's own file."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(POLICY.format(touched=str(touched)))
    running.run(tmp_path / "runs", "py_agent=mine.py:Mine", epochs=1)
    touched.unlink()
    return tmp_path / "runs" / "x"


def run(*words: str) -> int:
    return cli.main(list(words))


def edit(directory: Path, old: str, new: str) -> None:
    path = directory / "settings.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


VERBS = [
    ("eval", "run={run}", "episodes=1"),
    ("replay", "run={run}", "episodes=1"),
    ("memory", "run={run}", "episodes=2"),
    ("audit", "{run}", "--only", "detachment"),
    ("train", "run={name}", "runs_dir={parent}", "trainer.total_timesteps=1"),
    ("validate", "run={name}", "runs_dir={parent}"),
]


def words_for(verb: tuple[str, ...], directory: Path) -> list[str]:
    return [word.format(run=directory, name=directory.name, parent=directory.parent) for word in verb]


@pytest.mark.parametrize("verb", VERBS, ids=[verb[0] for verb in VERBS])
def test_a_copied_run_is_refused_without_running_its_code(own, touched, tmp_path, capsys, verb) -> None:
    copy = shutil.copytree(own, tmp_path / "elsewhere" / "copied")
    assert run(*words_for(verb, copy)) == 2
    message = capsys.readouterr().err
    assert "py_agent.name: mine.py:Mine" in message
    assert "--trust" in message
    assert not touched.exists()
    run(*words_for(verb, copy), "--trust")
    assert touched.exists() or verb[0] == "validate"  # validate only makes the environment


def test_own_runs_open_as_before(own, touched) -> None:
    assert run("eval", f"run={own}", "episodes=1") == 0
    assert touched.exists()
    assert load(["run=x", f"runs_dir={own.parent}"]).policy.name == "mine.py:Mine"
    (own.parent / "link").symlink_to(own)
    assert load_run(own.parent / "link")


def test_a_teacher_is_trusted_like_any_other_run(own, touched, tmp_path) -> None:
    copy = shutil.copytree(own, tmp_path / "copied")
    spec = running.make_spec(Recall(delay=2))
    settings = Kickstart(teacher=str(copy))
    with pytest.raises(UntrustedCodeError, match=r"py_agent\.name: mine\.py:Mine"):
        load_teacher(settings, spec, 4, torch.device("cpu"))
    assert not touched.exists()
    load_teacher(settings, spec, 4, torch.device("cpu"), trust=True)
    assert touched.exists()


def test_initial_weights_need_no_trust(own, touched, tmp_path) -> None:
    copy = shutil.copytree(own, tmp_path / "copied")
    running.run(tmp_path / "runs", f"init_from={copy}", name="other", epochs=1)
    assert not touched.exists()


@pytest.mark.parametrize("change", ["name", "option", "replaced"])
def test_an_edited_run_is_not_ones_own_any_more(own, touched, change) -> None:
    if change == "name":
        (own.parent.parent / "other.py").write_text(POLICY.format(touched=str(touched)))
        edit(own, "mine.py:Mine", "other.py:Mine")
    elif change == "option":
        edit(own, "clip_range: 0.0", "clip_range: 0.5")
    else:  # the same settings elsewhere, moved to where the user's run was
        shutil.rmtree(own)
        shutil.copytree(running_copy(own, touched), own)
    with pytest.raises(UntrustedCodeError):
        load_run(own)
    assert not touched.exists()


def running_copy(own: Path, touched: Path) -> Path:
    evil = own.parent / "evil"
    running.run(own.parent, "py_agent=mine.py:Mine", "py_agent.clip_range=0.25", name="evil", epochs=1)
    touched.unlink()
    return evil


def test_a_file_inside_the_run_may_not_change(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = tmp_path / "runs" / "x" / "code" / "mine.py"
    settings = load([*running.RECALL, "py_agent=fast", "run=x", f"runs_dir={tmp_path / 'runs'}"])
    running.prepare_directory(settings)
    file.parent.mkdir()
    file.write_text("class Mine: pass")
    running.prepare_directory(
        load([*running.RECALL, f"py_agent={file}:Mine", "run=x", f"runs_dir={tmp_path / 'runs'}"])
    )
    assert load_run(file.parents[1])
    file.write_text("print('other')")
    with pytest.raises(UntrustedCodeError):
        load_run(file.parents[1])


def test_the_same_name_in_another_folder_is_other_code(own, tmp_path, monkeypatch) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    (tmp_path / "folder" / "mine.py").write_text("class Mine: pass")
    with pytest.raises(UntrustedCodeError):
        load_run(own)


def test_a_record_of_another_run_is_no_record(own, tmp_path) -> None:
    """Even one that the run brings along, or that is damaged."""
    (record,) = (tmp_path / "state" / "engram" / "runs").iterdir()
    assert record.stat().st_mode & 0o077 == 0
    copy = shutil.copytree(own, tmp_path / "copied")
    shutil.copytree(tmp_path / "state", copy / "state")
    with pytest.raises(UntrustedCodeError):
        load_run(copy)
    for content in ("[]", "{}", "", json.dumps({**json.loads(record.read_text()), "code": ""})):
        record.write_text(content)
        with pytest.raises(UntrustedCodeError):
            load_run(own)


def test_bundled_policies_and_registered_environments_need_no_trust() -> None:
    for words in (["env=gym", "env.id=CartPole-v1", "env.wrappers=[mask_velocity]"], ["agent=fast"], ["env=arena"]):
        assert code_named_in(json.loads(load(words).model_dump_json())) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"env": {"kind": "gym", "id": "evil:Id-v0"}},
        {"env": {"kind": "gym", "id": "CartPole-v1", "wrappers": ["mask_velocity", "evil:Wrapper"]}},
        {"env": {"kind": "gym", "id": "CartPole-v1", "wrappers": [{"evil:Wrapper": {"size": 3}}]}},
        {"env": {"kind": "gym", "id": "CartPole-v1", "wrappers": [{"evil:Wrapper": None}]}},
        {"env": {"kind": "gym", "id": "GymV26Environment-v0", "kwargs": {"env_id": "evil:Id-v0"}}},
        {"env": {"kind": "gym", "id": "Ant-v5", "kwargs": {"deep": [{"xml_file": "/tmp/evil.xml"}]}}},
        {"env": {"kind": "pettingzoo", "module": "evil"}},
        {"py_agent": {"name": "evil:Policy"}},
        {"py_agent": {"name": "fast", "hooks": ["evil:hook"]}},
        {"trainer": {"hooks": ["evil.py:hook"]}},
        {"hooks": "evil.py"},
    ],
)
def test_everything_that_names_code_is_found(settings) -> None:
    assert len(code_named_in(settings)) == 1


def test_parts_that_are_replaced_need_no_trust(tmp_path) -> None:
    running.run(tmp_path, epochs=1)
    edit(tmp_path / "x", "kind: recall", "kind: gym\n  id: evil:Id-v0\n  kwargs: {}\nx:")
    content = (tmp_path / "x" / "settings.yaml").read_text()
    (tmp_path / "x" / "settings.yaml").write_text(content[: content.index("x:")] + content[content.index("trainer:") :])
    assert run("eval", f"run={tmp_path / 'x'}", "episodes=1") == 2
    assert run("eval", f"run={tmp_path / 'x'}", "episodes=1", "env=recall", "env.delay=2") == 0


def test_without_a_state_directory_training_goes_on(tmp_path, monkeypatch, touched) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(POLICY.format(touched=str(touched)))
    assert running.run(tmp_path / "runs", "py_agent=mine.py:Mine", epochs=1).checkpoint
    with pytest.raises(UntrustedCodeError):
        load_run(tmp_path / "runs" / "x")


def test_the_folder_of_a_run_is_no_place_for_modules(own, monkeypatch) -> None:
    import sys

    monkeypatch.setattr(sys, "path", list(sys.path))
    for folder, found in ((own, False), (own / "checkpoints", False), (own.parent, True)):
        monkeypatch.chdir(folder)
        run("--version")
        run("validate", "nonsense")
        assert (os.getcwd() in sys.path) == found


def test_a_replay_is_not_written_through_a_link(tmp_path) -> None:
    running.run(tmp_path, epochs=1)
    (tmp_path / "secret").write_text("mine")
    (tmp_path / "x" / "replay.html").symlink_to(tmp_path / "secret")
    assert run("replay", f"run={tmp_path / 'x'}", "episodes=1") == 2
    assert (tmp_path / "secret").read_text() == "mine"


def test_a_report_is_not_written_into_a_file_that_has_other_names(tmp_path, capsys) -> None:
    running.run(tmp_path, epochs=1)
    (tmp_path / "secret").write_text("mine")
    (tmp_path / "x" / "report.html").hardlink_to(tmp_path / "secret")
    assert run("report", "x", f"runs_dir={tmp_path}") == 2
    assert "report.html has 2 hard links, expected 1: name a different file with --out" in capsys.readouterr().err
    assert (tmp_path / "secret").read_text() == "mine"


@pytest.mark.parametrize(
    ("verb", "name"),
    [
        ("replay", "replay.html"),
        ("memory", "memory.html"),
        ("memory", "memory.json"),
        ("export", "policy.onnx"),
        ("report", "report.html"),
    ],
)
def test_a_page_in_whose_place_is_a_fifo_is_refused_and_nobody_waits(tmp_path, capsys, verb, name) -> None:
    running.run(tmp_path, epochs=1)
    os.mkfifo(tmp_path / "x" / name)
    assert run(verb, "x", f"runs_dir={tmp_path}") == 2
    assert f"{name}: not a regular file" in capsys.readouterr().err
