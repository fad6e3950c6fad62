"""Command lines and the settings they give."""

import pytest

from engram.agent.settings import POLICIES, PyAgent, YamlAgent
from engram.config.groups import CONFIG_FOLDER, GROUPS, choices
from engram.config.load import describe_run, dump, load, load_run
from engram.config.run import RunSettings
from engram.config.run_directory import prepare_directory
from engram.env.settings import Arena, Gym, Recall, TMaze
from engram.settings import UserError


@pytest.fixture
def graph(tmp_path):
    """A user's component graph without a name."""
    path = tmp_path / "mine.yaml"
    path.write_text((CONFIG_FOLDER / "agent" / "fast.yaml").read_text().replace("name: fast", ""))
    return str(path)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_documented_training_command_works(policy):
    words = f"py_agent={policy} run=test_fast trainer.total_timesteps=5000 trainer.num_workers=2 wandb=off"
    settings = load(words.split())
    assert settings.policy == PyAgent(name=policy)
    assert settings.run == "test_fast"
    assert (settings.trainer.total_timesteps, settings.trainer.num_workers) == (5000, 2)
    assert not settings.wandb.enabled


def test_the_default_is_fast_on_the_t_maze():
    settings = load([])
    assert (settings.policy, settings.env, settings.run) == (PyAgent(), TMaze(), "fast_tmaze")
    assert str(settings.directory) == "runs/fast_tmaze"


@pytest.mark.parametrize("group", GROUPS)
def test_every_choice_of_every_group_is_valid_and_has_a_description(group):
    needed = {
        "mettagrid": ["env.path=world.json"],
        "pettingzoo": ["env.module=some.module"],
        "python": ["env.name=mine.py:Mine"],
    }
    for choice, description in choices(group).items():
        assert load([f"{group}={choice}", *needed.get(choice, [])])
        assert description.endswith(".")


def test_overrides_come_in_any_order_and_the_last_of_a_name_counts():
    one = load(["env.delay=20", "seed=3", "env=recall", "trainer.ppo.gamma=0.9"])
    other = load(
        ["trainer.ppo.gamma=0.5", "env=tmaze", "env=recall", "trainer.ppo.gamma=0.9", "env.delay=20", "seed=3"]
    )
    assert one == other
    assert (one.seed, one.env, one.trainer.ppo.gamma) == (3, Recall(delay=20), 0.9)


@pytest.mark.parametrize(
    ("words", "horizon"),
    [
        ("env=recall env.delay=100", 128),
        ("env=recall env.delay=103", 256),
        ("env=recall env.delay=200 trainer.total_timesteps=5000", 256),
        ("env=recall env.delay=4000", 512),
        ("env=recall env.delay=200 trainer.bptt_horizon=64", 64),
        ("env=recall env.delay=200 trainer=metta", 64),
        ("task=recall/delay200", 256),
        ("env=tmaze", 128),
    ],
)
def test_segments_span_a_known_delay_unless_their_length_is_set(words, horizon):
    settings = load(words.split())
    assert settings.trainer.bptt_horizon == horizon
    assert RunSettings.model_validate(settings.model_dump()) == settings


@pytest.mark.parametrize("run", ["1e5", "007", "null_hypothesis", "true", "off", "1_000"])
def test_text_settings_are_literal(run):
    settings = load([f"run={run}", "wandb.project=12", "env=gym", "env.id=ALE/Pong-v5"])
    assert (settings.run, settings.wandb.project, settings.env.id) == (run, "12", "ALE/Pong-v5")


def test_schedules_are_written_as_one_override_or_several_and_read_back_from_a_run(tmp_path):
    name = "trainer.schedule.optimizer.learning_rate"
    one = load([f"{name}={{kind:linear,to:0}}"])
    assert one == load([f"{name}.kind=linear", f"{name}.to=0"])
    assert one == load(["trainer.schedule={optimizer.learning_rate:{kind:linear,to:0}}"])
    (tmp_path / "settings.yaml").write_text(dump(one))
    assert load_run(tmp_path) == one


def test_values_may_be_lists_dictionaries_null_or_quoted():
    env = load(["env=gym", "env.wrappers=[a,'b c']", "env.kwargs={size:5,on:true}", "env.kwargs.goal=far"]).env
    assert env == Gym(wrappers=["a", "b c"], kwargs={"size": 5, "on": True, "goal": "far"})
    settings = load(
        ["trainer.ppo={gamma:0.9,vf_clip_coef:null}", "wandb.entity='my team'", "trainer.total_timesteps=1e6"]
    )
    assert (settings.trainer.ppo.gamma, settings.trainer.ppo.vf_clip_coef) == (0.9, None)
    assert (settings.wandb.entity, settings.trainer.total_timesteps) == ("my team", 1_000_000)


@pytest.mark.parametrize("module", ["policies.mine:Mine", "mine:Mine"])
def test_a_users_policy_comes_from_a_module_and_has_its_own_options(module):
    settings = load([f"py_agent={module}", "py_agent.my_option=3", "py_agent.hidden_size=64"])
    assert settings.policy.arguments == PyAgent(name=module, my_option=3, hidden_size=64).arguments
    assert settings.policy.arguments["my_option"] == 3
    assert settings.run == "Mine_tmaze"


def test_a_users_policy_comes_from_a_file(tmp_path):
    (tmp_path / "mine.py").touch()
    assert load([f"py_agent={tmp_path}/mine.py:Mine"]).policy.name == f"{tmp_path}/mine.py:Mine"
    with pytest.raises(UserError, match=r"^py_agent: there is no file .*/yours\.py$"):
        load([f"py_agent={tmp_path}/yours.py:Mine"])
    with pytest.raises(UserError, match=r"^py_agent: '.*/mine\.py' names no class: write .*mine\.py:CLASS$"):
        load([f"py_agent={tmp_path}/mine.py"])


def test_a_users_graph_comes_from_a_file_and_its_components_can_be_changed(graph):
    settings = load(["agent.components._core_.hidden_size=64", f"agent={graph}", "agent.clip_range=0.5"])
    assert isinstance(settings.policy, YamlAgent)
    assert settings.py_agent is None
    assert settings.policy.components["_core_"]["hidden_size"] == 64
    assert settings.policy.components["_core_"]["kind"] == "core"
    assert (settings.policy.name, settings.policy.clip_range, settings.run) == ("mine", 0.5, "mine_tmaze")


def test_every_group_takes_a_users_file(tmp_path):
    (tmp_path / "long.yaml").write_text("total_timesteps: 7\nppo:\n  gamma: 0.99\n")
    trainer = load([f"trainer={tmp_path}/long.yaml"]).trainer
    assert (trainer.total_timesteps, trainer.ppo.gamma, trainer.ppo.gae_lambda) == (7, 0.99, 0.95)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- a\n", "must hold names and values, not a list"),
        ("a: [1\n", "is not valid YAML"),
        ("components: {_core_: {_target_: os.system}}\n", "the key _target_ is not supported"),
        ("components: {}\nname: '${oc.env:HOME}'\n", "references such as"),
    ],
)
def test_a_file_that_is_not_plain_data_is_refused(tmp_path, content, message):
    (tmp_path / "bad.yaml").write_text(content)
    with pytest.raises(UserError, match=message):
        load([f"agent={tmp_path}/bad.yaml"])


@pytest.mark.parametrize(
    "words",
    [
        ["run=1e5", "env=arena", "env.agents=8", "trainer.ppo.target_kl=0.01", "trainer.optimizer.eps=1e-12"],
        ["py_agent=a.b:C", "py_agent.option=[1,x,null]", "env=gym", "env.kwargs.n=1", "wandb=offline"],
    ],
)
def test_stored_settings_are_read_back_unchanged(tmp_path, words):
    settings = load(words)
    (tmp_path / "settings.yaml").write_text(dump(settings))
    assert describe_run(tmp_path) == settings


def test_stored_graphs_are_read_back_unchanged(tmp_path, graph):
    settings = load([f"agent={graph}"])
    (tmp_path / "settings.yaml").write_text(dump(settings))
    assert describe_run(tmp_path) == settings


def test_stored_settings_of_another_version_are_an_error(tmp_path):
    (tmp_path / "settings.yaml").write_text(dump(load([])).replace("gamma:", "discount:"))
    with pytest.raises(UserError, match=r"trainer\.ppo\.discount: no such option(.|\n)*does not fit this version"):
        load_run(tmp_path)
    with pytest.raises(UserError, match=r"there is no file"):
        load_run(tmp_path / "nowhere")


def test_a_run_has_exactly_one_policy():
    with pytest.raises(ValueError, match="give one of py_agent="):
        RunSettings(env=Arena())


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["env=gym", "env.id=ALE/Pong-v5"], "fast_ALE-Pong-v5"),
        (["env=pettingzoo", "env.module=pettingzoo.butterfly.pistonball_v6"], "fast_pistonball_v6"),
        (["env=mettagrid", "env.path=worlds/my maze.json"], "fast_my-maze"),
    ],
)
def test_the_default_run_name_is_policy_and_environment(words, name):
    assert load(words).run == name


def test_a_resumed_run_has_its_stored_settings_by_default(tmp_path):
    where = f"runs_dir={tmp_path}"
    began = load(["run=mine", where, "env=recall", "env.cues=3", "seed=7", "trainer.num_envs=32", "agent=reference"])
    prepare_directory(began)
    assert load(["run=mine", where]).env.kind == "tmaze"  # without a checkpoint there is nothing to resume
    (began.directory / "checkpoints" / "epoch_000001").mkdir(parents=True)
    assert load(["run=mine", where]) == began
    assert load(["run=other", where]).env.kind == "tmaze"
    longer = load(["run=mine", where, "trainer.total_timesteps=9000", "env.cues=5", "wandb=offline"])
    assert (longer.trainer.total_timesteps, longer.trainer.num_envs, longer.wandb.mode) == (9000, 32, "offline")
    assert (longer.env.cues, longer.agent) == (5, began.agent)
    anew = load(["run=mine", where, "py_agent=fast", "env=small"])
    assert (anew.env.kind, anew.agent, anew.policy.name, anew.seed) == ("small", None, "fast", 7)


def test_a_moved_run_resumes_in_its_new_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    began = load(["run=mine", "runs_dir=before", "seed=7"])
    prepare_directory(began)
    (began.directory / "checkpoints" / "epoch_000001").mkdir(parents=True)
    for now, words in (("elsewhere", ["runs_dir=elsewhere"]), ("runs", [])):
        began.directory.parent.rename(now)
        moved = load(["run=mine", *words])
        assert (moved.seed, moved.runs_dir) == (7, now)
        began = moved
