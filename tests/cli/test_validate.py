"""`engram validate`."""

import pytest
from omegaconf import OmegaConf

from engram.cli.main import main
from engram.config.run import RunSettings


def test_settings_are_printed_in_full_as_yaml_and_nothing_is_made(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["validate", "run=1e5", "env=arena", "trainer.num_envs=3"]) == 0
    said = capsys.readouterr().out
    settings = RunSettings.model_validate(OmegaConf.to_container(OmegaConf.create(said)))
    assert (settings.run, settings.env.kind, settings.trainer.num_envs) == ("1e5", "arena", 3)
    assert "#   rows: 72\n" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["env=gym", "env.id=CartPol-v1"], "CartPole-v1"),
        (["env=pettingzoo", "env.module=a.b"], "env.module: there is no module a.b"),
        (["env=gym", "trainer.num_envs=3", "trainer.batch_size=4096"], "trainer.batch_size"),
    ],
)
def test_an_environment_that_is_not_there_and_sizes_that_do_not_fit_it_are_told(words, problem, capsys):
    assert main(["validate", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert problem in captured.err


def test_what_is_wrong_is_told_on_stderr(capsys):
    assert main(["validate", "env=arenna", "seed=x"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 2
