"""Sweep files."""

import pytest

from engram.config.sweep import command_line, load_sweep, trial_name
from engram.settings import UserError

GOOD = """
settings: [env=recall]
search:
  trainer.optimizer.learning_rate: {low: 1e-4, high: 1e-2, log: true}
  trainer.bptt_horizon: {choices: [16, 32]}
"""


def written(tmp_path, text):
    path = tmp_path / "my_sweep.yaml"
    path.write_text(text)
    return path


def test_a_sweep_becomes_command_lines(tmp_path):
    sweep = load_sweep(written(tmp_path, GOOD))
    assert trial_name(sweep, 3) == "my_sweep_trial-3"
    values = {"trainer.optimizer.learning_rate": 0.001, "trainer.bptt_horizon": 16}
    expected = ["env=recall", "trainer.optimizer.learning_rate=0.001", "trainer.bptt_horizon=16", "run=r"]
    assert command_line(sweep, values, "r") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("search: {}", "search"),
        ("trials: 3", "search"),
        ("serch: {seed: {choices: [1]}}", "did you mean search"),
        ("search: {seed: {low: 1}}", "give low and high"),
        ("search: {seed: {low: 5, high: 1}}", "must be less than high"),
        ("search: {seed: {low: 0, high: 1, log: true}}", "above 0"),
        ("search: {seed: {choices: [1], low: 1}}", "not both"),
        ("search: {sed: {choices: [1, 2]}}", "did you mean seed"),
        ("search: {seed: {choices: [1, x]}}", "seed"),
        ("search: {trainer.ppo.gamma: {low: 0.9, high: 2.0}}", "trainer.ppo.gamma"),
        ("search: {seed: {choices: [1]}}\nsettings: [seed=2]", "searched too"),
        ("search: {seed: {choices: [1]}}\nsettings: [run=x]", "study: NAME"),
        ("search: {seed: {choices: [1]}}\nsettings: ['--seed']", "settings"),
        ("search: {seed: {choices: [1]}}\nstudy: a/b", "cannot name directories"),
        ("search: {seed: {choices: [1]}}\nsampler: magic", "sampler"),
        ("search: {seed: {choices: [1]}}\ntrials: 0", "trials"),
        ("[1, 2]", "names and values"),
    ],
)
def test_a_bad_file_is_one_message(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(UserError, match=message) as error:
        load_sweep(path)
    assert str(path) in str(error.value)


def test_a_missing_file_is_one_message(tmp_path):
    with pytest.raises(UserError, match="there is no file"):
        load_sweep(tmp_path / "none.yaml")
