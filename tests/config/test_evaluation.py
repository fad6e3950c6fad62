"""The settings of `engram eval`."""

import pytest

from engram.config.evaluation import EvalSettings, load_request
from engram.config.load import load, load_run
from engram.config.run_directory import prepare_directory
from engram.env.settings import Gym, Recall, TMaze
from engram.settings import UserError


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """The directory `runs` with two stored runs, whose checkpoints are not looked at."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("engram.config.evaluation.checkpoint_of", lambda *_: None)
    prepare_directory(load(["run=maze_1", "env.max_steps=30"]))
    prepare_directory(load(["run=recall_1", "env=recall", "env.delay=5", "agent=fast"]))
    return tmp_path / "runs"


def problems(*words: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        load_request(words, EvalSettings)
    return str(caught.value).splitlines()


def test_a_run_is_evaluated_as_it_was_trained_by_default(runs):
    request = load_request(["run=maze_1"], EvalSettings)
    assert request.settings == EvalSettings(run="maze_1")
    assert request.run == load_run(runs / "maze_1")
    assert request.directory.resolve() == runs / "maze_1"


def test_settings_are_read_from_the_command_line(runs):
    words = "run=maze_1 episodes=7 greedy=true seed=3 checkpoint=best num_envs=2 num_workers=1 device=cpu"
    settings = load_request(words.split(), EvalSettings).settings
    assert (settings.episodes, settings.greedy, settings.seed, settings.checkpoint) == (7, True, 3, "best")
    assert (settings.num_envs, settings.num_workers, settings.device) == (2, 1, "cpu")


@pytest.mark.parametrize("words", [["run=maze_1", "runs_dir=elsewhere"], ["run=elsewhere/maze_1"]])
def test_a_run_is_found_by_its_path_too(runs, words):
    runs.rename(runs.with_name("elsewhere"))
    assert load_request(words, EvalSettings).run.run == "maze_1"


def test_the_environment_may_be_changed_or_replaced(runs):
    assert load_request(["run=maze_1", "env.corridor=6"], EvalSettings).run.env == TMaze(max_steps=30, corridor=6)
    assert load_request(["run=recall_1", "env.delay=9"], EvalSettings).run.env == Recall(delay=9)
    changed = load_request(["run=recall_1", "env.id=Acrobot-v1", "env=gym", "env.max_steps=9"], EvalSettings).run
    assert changed.env == Gym(id="Acrobot-v1", max_steps=9, reward_scale=load(["env=gym"]).env.reward_scale)
    assert changed.policy == load_run(runs / "recall_1").policy


def test_an_unknown_run_gets_the_nearest_name(runs):
    assert problems("run=maze1") == ["run: no run 'maze1' in runs; did you mean maze_1?"]
    assert problems("run=zzz") == ["run: no run 'zzz' in runs; there are maze_1, recall_1"]
    assert problems("run=x", "runs_dir=none") == ["run: there are no runs in none: train one, or set runs_dir="]


def test_every_mistake_is_reported_at_once(runs):
    assert problems("episods=3", "greedy=maybe", "seed=-1") == [
        "episods: no such option; did you mean episodes?",
        "run: missing: give run=VALUE",
        "greedy: 'maybe' is neither true nor false",
        "seed: '-1' is too small: at least 0",
    ]
    assert problems("run=maze_1", "env.corridr=3", "env.max_steps=x") == [
        "env.corridr: no such option; did you mean env.corridor?",
        "env.max_steps: 'x' is not a whole number",
    ]
    assert problems("run=maze_1", "env=arenna")[0].startswith("env: no choice 'arenna'; did you mean arena?")
    assert problems("run=maze_1", "env.delay=3")[0].startswith("env.delay: not in the chosen environment")
    assert problems("--episodes=3") == ["--episodes=3: settings have no dashes: write episodes=3"]


def test_a_list_in_the_place_of_a_section_is_one_message(runs):
    assert problems("run=maze_1", "env=gym", "env.kwargs=[1]")[0].startswith("env.kwargs: [1] is not a set of names")
