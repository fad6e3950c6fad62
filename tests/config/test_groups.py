"""Recipes: `task=NAME` gives an environment, a budget and settings, and composes with all other settings."""

import sys

import pytest

from engram.config.groups import choices, read_recipe
from engram.config.load import load
from engram.config.run_directory import prepare_directory
from engram.env.registry import make_spec
from engram.env.settings import Gym, Recall
from engram.settings import UserError

MINE = """# Mine.
env: {kind: recall, delay: 3}
trainer: {total_timesteps: 5000, ppo: {gamma: 0.9}}
py_agent: {core: gru}
published: {score: 0.8, by: me, source: a note}
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(MINE)
    return str(path)


def test_a_recipe_gives_environment_and_budget():
    settings = load(["task=popgym/RepeatPreviousMedium"])
    assert settings.env == Gym(id="popgym:popgym-RepeatPreviousMedium-v0")
    assert settings.trainer.total_timesteps == 1_000_000
    assert (settings.task, settings.run) == ("popgym/RepeatPreviousMedium", "fast_popgym-RepeatPreviousMedium")


def test_other_settings_and_groups_compose_with_a_recipe(mine):
    settings = load([f"task={mine}", "trainer=metta", "env.delay=7", "py_agent=example", "trainer.ppo.gae_lambda=0.5"])
    assert settings.env == Recall(delay=7)
    assert settings.trainer.ppo.gamma == 0.9  # of the recipe, on top of trainer=metta
    assert (settings.trainer.ppo.clip_coef, settings.trainer.ppo.gae_lambda) == (0.1, 0.5)
    assert (settings.policy.name, settings.policy.core, settings.run) == ("example", "gru", "example_mine")


@pytest.mark.parametrize("task", choices("task"))
def test_every_recipe_has_a_budget_and_a_documented_source(task):
    recipe = read_recipe(task)
    assert recipe.trainer["total_timesteps"] >= 100_000
    if recipe.published:
        assert recipe.published.source.startswith("https://")
        assert recipe.goal is not None


@pytest.mark.parametrize("task", choices("task"))
def test_the_environment_of_every_recipe_can_be_made(task):
    assert make_spec(load([f"task={task}"]).env).single_action_space is not None


def test_the_goal_is_the_published_score_unless_another_is_given(mine):
    assert read_recipe(mine).goal == 0.8
    assert read_recipe("control/CartPole").goal == 495
    assert read_recipe("mettagrid/small").goal is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["task=popgym/RepeatPreviousMedum"], "no choice 'popgym/RepeatPreviousMedum'; did you mean popgym/RepeatPrev"),
        (["task=CartPole"], "did you mean control/CartPole?"),
        (["task=control/CartPole", "env=tmaze"], "give task= or env=, not both"),
        (["task=missing.yaml"], "there is no file missing.yaml"),
        (["task=control/CartPole", "env.delay=3"], "env.delay: not in the chosen environment, only with env=recall"),
    ],
)
def test_a_mistake_is_explained(words, message):
    with pytest.raises(UserError) as error:
        load(words)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("env:", "envs:", "envs"),
        ("score:", "scores:", "published.scores"),
        ("0.8", "high", "published.score"),
        ("delay:", "dely:", "env.dely: no such option; did you mean env.delay?"),
        ("gamma: 0.9", "gamma: 9", "trainer.ppo.gamma: 9 is too large"),
    ],
)
def test_a_mistake_in_a_users_recipe_is_explained(mine, old, new, message, tmp_path):
    path = tmp_path / "wrong.yaml"
    path.write_text(MINE.replace(old, new, 1))
    with pytest.raises(UserError) as error:
        load([f"task={path}"])
    assert message in str(error.value)


def test_a_recipe_with_settings_of_py_agent_does_not_go_with_agent(mine):
    with pytest.raises(UserError, match="sets py_agent"):
        load([f"task={mine}", "agent=fast"])
    assert load(["task=recall/delay10", "agent=fast"]).agent is not None


def test_a_run_resumes_with_its_recipe_and_refuses_another(mine, tmp_path):
    words = ["run=x", f"runs_dir={tmp_path}"]
    directory = prepare_directory(load([f"task={mine}", *words]))
    (directory / "checkpoints" / "epoch_000001").mkdir(parents=True)
    assert load([f"task={mine}", *words]).env == Recall(delay=3)
    assert load(words).task == mine
    with pytest.raises(UserError, match=r"task: recall/delay10, but .*mine.yaml when the run began"):
        prepare_directory(load(["task=recall/delay10", *words]))


def test_a_missing_package_of_a_recipe_names_the_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "popgym", None)
    with pytest.raises(UserError, match=r"not installed: .*engram-rl\[tasks\]"):
        make_spec(load(["task=popgym/RepeatPreviousEasy"]).env)
