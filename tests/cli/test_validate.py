"""`engram validate`."""

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


def test_sizes_wait_for_an_environment_that_must_be_built_to_know_its_agents(capsys):
    assert main(["validate", "env=pettingzoo", "env.module=a.b"]) == 0
    assert "# Sizes: known once the environment is built" in capsys.readouterr().out


def test_what_is_wrong_is_told_on_stderr(capsys):
    assert main(["validate", "env=arenna", "seed=x"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 2
