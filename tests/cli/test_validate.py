"""`engram validate`."""

import pytest
from omegaconf import OmegaConf

from engram.cli.main import main
from engram.config.run import RunSettings


def test_settings_are_printed_as_yaml_and_no_file_is_written(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["validate", "run=1e5", "env=arena", "trainer.num_envs=3"]) == 0
    output = capsys.readouterr().out
    settings = RunSettings.model_validate(OmegaConf.to_container(OmegaConf.create(output)))
    assert (settings.run, settings.env.kind, settings.trainer.num_envs) == ("1e5", "arena", 3)
    assert "#   rows: 72\n" in output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["env=gym", "env.id=CartPol-v1"], "CartPole-v1"),
        (["env=pettingzoo", "env.module=a.b"], "env.module: no module named a.b"),
        (["env=gym", "trainer.num_envs=3", "trainer.batch_size=4096"], "trainer.batch_size"),
    ],
)
def test_missing_environments_and_impossible_sizes_are_reported(words, problem, capsys):
    assert main(["validate", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert problem in captured.err


def test_mistakes_go_to_stderr(capsys):
    assert main(["validate", "env=arenna", "seed=x"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 2
