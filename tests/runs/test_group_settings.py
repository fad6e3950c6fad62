"""Settings with several values."""

import pytest

from engram.runs.group import expand, split_values
from engram.settings import SettingsError, UserError


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("1", ["1"]),
        ("1,2,3", ["1", "2", "3"]),
        ("1, 2", ["1", "2"]),
        ("1,1", ["1"]),
        ("[1,2]", ["[1,2]"]),
        ("[1,2],[3]", ["[1,2]", "[3]"]),
        ("'a,b'", ["'a,b'"]),
        ("{a:1,b:2}", ["{a:1,b:2}"]),
        (r"a\,b", [r"a\,b"]),
        ("1,", ["1", ""]),
    ],
)
def test_values_are_split_at_commas_outside_of_brackets_and_quotes(text, parts):
    assert split_values(text) == parts


def test_one_value_of_each_setting_is_no_group():
    assert expand(["env=recall", "seed=1"]) is None


def test_there_is_a_run_for_each_combination():
    members = expand(["env=recall", "seed=1,2", "trainer.optimizer.learning_rate=0.001,0.01", "run=x"])
    assert [member.settings.run for member in members] == [
        "x_seed-1_learning_rate-0.001",
        "x_seed-1_learning_rate-0.01",
        "x_seed-2_learning_rate-0.001",
        "x_seed-2_learning_rate-0.01",
    ]
    assert [member.settings.seed for member in members] == [1, 1, 2, 2]
    assert members[3].settings.trainer.optimizer.learning_rate == 0.01
    assert members[3].values == {"seed": "2", "trainer.optimizer.learning_rate": "0.01"}


def test_choices_of_a_group_can_differ_too():
    members = expand(["env=recall,tmaze", "seed=1"])
    assert [member.settings.run for member in members] == ["fast_recall_env-recall", "fast_tmaze_env-tmaze"]


def test_names_that_would_be_equal_are_numbered():
    members = expand(["env=recall", "init_from=a/b,a:b", "run=x"])
    assert [member.settings.run for member in members] == ["x_init_from-a-b", "x_init_from-a-b_2"]


def test_mistakes_of_all_runs_are_reported_at_once():
    with pytest.raises(SettingsError) as error:
        expand(["env=recall", "seed=1,x", "trainer.ppo.gamma=0.9,2"])
    assert len(error.value.lines) == 2


@pytest.mark.parametrize(("words", "message"), [(["seed=1,"], "empty value"), (["run=a,b"], "one name")])
def test_a_mistake_in_the_values_is_one_message(words, message):
    with pytest.raises(UserError, match=message):
        expand(words)
