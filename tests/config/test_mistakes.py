"""The messages for mistakes in a command line."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engram.config.groups import GROUPS
from engram.config.load import load
from engram.config.run import known_settings
from engram.settings import SettingsError, UserError


def lines(*words: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(words)
    return caught.value.lines


def line(*words: str) -> str:
    (one,) = lines(*words)
    return one


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("total_timesteps=5", "trainer.total_timesteps"),
        ("trainer.learning_rte=5", "trainer.optimizer.learning_rate"),
        ("trainer.optimizer.lerning_rate=5", "trainer.optimizer.learning_rate"),
        ("trainer.gama=0.9", "trainer.ppo.gamma"),
        ("trainer.num_worker=5", "trainer.num_workers"),
        ("lr=5", "trainer.optimizer.learning_rate"),
        ("trainer.lr=5", "trainer.optimizer.learning_rate"),
        ("sed=5", "seed"),
        ("env.windw=5", "env.window"),
        ("agnt=fast", "agent"),
        ("'trainer.ppo={gama:0.9}'", "trainer.ppo.gamma"),
    ],
)
def test_an_unknown_name_gets_the_nearest_real_one(word, meant):
    name = word.strip("'").partition("=")[0]
    message = line(word.strip("'"))
    assert message.startswith(name)
    assert message.endswith(f": no such option; did you mean {meant}?")


def test_a_name_without_a_near_one_gets_no_suggestion():
    assert line("xyzzy=1") == "xyzzy: no such option"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("env=tmze", "env: no choice 'tmze'; did you mean tmaze? (arena, gym, mettagrid,"),
        ("py_agent=fats", "py_agent: no choice 'fats'; did you mean fast? (example, fast,"),
        ("agent=nothing.like/it", "agent: no choice 'nothing.like/it'"),
        ("wandb=of", "wandb: no choice 'of'; did you mean off? (off, offline, online"),
        ("agent=there/is/none.yaml", "agent: there is no file there/is/none.yaml"),
    ],
)
def test_an_unknown_choice_gets_the_nearest_and_the_list(word, message):
    assert line(word).startswith(message)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("tmaze", "tmaze: settings are written NAME=VALUE; did you mean env=tmaze?"),
        ("seed", "seed: settings are written NAME=VALUE; did you mean seed=VALUE?"),
        ("--seed=3", "--seed=3: settings have no dashes: write seed=3"),
        ("--total-timesteps", "--total-timesteps: settings have no dashes: write total_timesteps=VALUE"),
        ("+seed=3", "+seed=3: settings cannot be added (+) or deleted (~): write NAME=VALUE"),
        ("~seed", "~seed: settings cannot be added (+) or deleted (~): write NAME=VALUE"),
        ("seed=", "seed: no value: write seed=VALUE without spaces"),
        ("=3", "=3: '' is not the name of a setting: write NAME=VALUE without spaces"),
        ("env@here=tmaze", "env@here=tmaze: 'env@here' is not the name of a setting: write NAME=VALUE without spaces"),
        ("hydra.run.dir=/tmp", "hydra.run.dir: no such option"),
        ("_target_=os.system", "_target_: names of settings do not begin with an underscore"),
        ("py_agent._args_=[1]", "py_agent._args_: names of settings do not begin with an underscore"),
        ("py_agent.x={_target_:os.system}", "py_agent.x: the key _target_ is not supported"),
        ("run=${oc.env:HOME}", "run: references such as ${oc.env:HOME} are not supported"),
        ("seed=1,2", "seed: 1,2 is several values: give one (a list is written [a,b])"),
        ("seed=choice(1,2)", "seed: choice(1,2) cannot be read (unexpected '(')"),
        ("trainer.ppo=[1", "trainer.ppo: [1 cannot be read ("),
        ("env.kind=recall", "env.kind: choose with env=NAME"),
        ("py_agent.name=example", "py_agent.name: choose with py_agent=NAME"),
    ],
)
def test_a_malformed_override_gets_the_right_form(word, message):
    assert line(word).startswith(message)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("trainer.total_timesteps=abc", "trainer.total_timesteps: 'abc' is not a whole number"),
        ("trainer.total_timesteps=2.5", "trainer.total_timesteps: 2.5 is not a whole number"),
        ("trainer.total_timesteps=true", "trainer.total_timesteps: true is not a number"),
        ("trainer.total_timesteps=null", "trainer.total_timesteps: null is not a whole number"),
        ("trainer.total_timesteps=0", "trainer.total_timesteps: 0 is too small: at least 1"),
        ("trainer.num_workers=5000", "trainer.num_workers: 5000 is too large: at most 1024"),
        ("trainer.batch_size=64000000000", "trainer.batch_size: 64000000000 is too large: at most 2147483647"),
        ("trainer.ppo.gamma=1.5", "trainer.ppo.gamma: 1.5 is too large: at most 1"),
        ("trainer.ppo.clip_coef=0", "trainer.ppo.clip_coef: 0 is too small: more than 0"),
        ("trainer.optimizer.beta1=1", "trainer.optimizer.beta1: 1 is too large: less than 1"),
        ("trainer.optimizer.eps=nan", "trainer.optimizer.eps: nan is not a finite number"),
        ("trainer.optimizer.eps=x", "trainer.optimizer.eps: 'x' is not a number"),
        ("trainer.profile=maybe", "trainer.profile: 'maybe' is neither true nor false"),
        ("trainer.memory=cary", "trainer.memory: 'cary' is not one of carry, reset, off; did you mean carry?"),
        ("device=gpu", "device: 'gpu' is not one of auto, cpu, cuda, mps"),
        ("trainer.ppo=3", "trainer.ppo: 3 is not a set of names and values: write {name:value}"),
        ("env.window=4", "env.window: 4 is even, which the simulator cannot centre on the agent: try 3 or 5"),
        ("run=a/b", "run: 'a/b' cannot name a directory (letters, digits and . _ + -, at most 100): try a-b"),
        ("run=..", "run: '..' cannot name a directory (letters, digits and . _ + -, at most 100)"),
        ("seed=-1", "seed: -1 is too small: at least 0"),
        ("env=mettagrid", "env.path: missing: give env.path=VALUE"),
        ("trainer.burn_in=128",
         "trainer.burn_in: 128 leaves nothing to learn from: must be less than trainer.bptt_horizon (128)"),
        ("trainer.minibatch_size=1000", "trainer.minibatch_size: 1000 is not a multiple of trainer.bptt_horizon (128): "
         "try 896 or 1024"),
    ],
)  # fmt: skip
def test_a_wrong_value_gets_what_is_expected(word, message):
    assert line(word) == message


RATE = "trainer.schedule.optimizer.learning_rate"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("trainer.schedule.optimizer.learning_rte={kind:linear,to:0}",
         "trainer.schedule: optimizer.learning_rte cannot be scheduled; did you mean optimizer.learning_rate?"),
        ("trainer.schedule={lr:{kind:linear,to:0}}", "trainer.schedule: lr cannot be scheduled; did you mean"),
        ("trainer.schedule={xyzzy:{kind:linear,to:0}}", "trainer.schedule: xyzzy cannot be scheduled: choose from"),
        ("trainer.schedule.ppo.norm_adv={kind:linear,to:0}", "trainer.schedule: ppo.norm_adv cannot be scheduled"),
        ("trainer.schedule.ppo.target_kl={kind:linear,to:1}",
         "trainer.schedule: ppo.target_kl cannot be scheduled: give trainer.ppo.target_kl a value first"),
        ("trainer.schedule.ppo.gamma={kind:linear,to:1.5}", "trainer.schedule: ppo.gamma would become 1.5,"),
        ("trainer.schedule=3", "trainer.schedule: 3 is not a set of names and values: write {name:value}"),
        (f"{RATE}={{kind:linar,to:0}}", f"{RATE}: no kind 'linar': one of 'constant', 'linear', 'cosine', 'metric'"),
        (f"{RATE}={{to:0}}", f"{RATE}: no kind is given: one of constant, linear, cosine, metric"),
        (f"{RATE}=to:0", f"{RATE}: 'to:0' is not a set of names and values: write {{name:value}}"),
        (f"{RATE}.kind=linear", f"{RATE}.to: missing: give {RATE}.to=VALUE"),
        (f"{RATE}={{kind:linear,to:0,untl:1}}", f"{RATE}.untl: no such option; did you mean {RATE}.until?"),
        (f"{RATE}={{kind:metric,metric:a,factor:2,patience:1,most:1,better:x}}",
         f"{RATE}.better: 'x' is not one of higher, lower"),
        (f"{RATE}={{kind:metric,metric:a,factor:2,most:1}}", f"{RATE}: give one of patience"),
        (f"{RATE}={{kind:metric,metric:a,factor:2,target:1}}", f"{RATE}: give least, most or both"),
        (f"{RATE}={{kind:metric,metric:a,factor:2,target:1,least:0.1}}",
         "trainer.schedule: optimizer.learning_rate is set to 0.001, but must be between least and most, and not 0"),
    ],
)  # fmt: skip
def test_a_schedule_is_checked_like_every_setting(word, message):
    assert line(word).startswith(message)


def test_settings_of_another_environment_or_policy_are_not_called_unknown():
    assert line("env.delay=3") == "env.delay: not in the chosen environment, only with env=recall"
    assert line("env=recall", "env.kwargs.a=3").endswith("only with env=gym|python|pettingzoo")
    message = "agent.clip_range: this run has no agent: give agent=NAME, or write py_agent.clip_range"
    assert line("agent.clip_range=1") == message


def test_a_run_cannot_have_two_policies():
    assert line("agent=fast", "py_agent=fast", "py_agent.x=3") == "agent: give agent= or py_agent=, not both"


def test_mistakes_in_a_graph_are_reported_with_all_others():
    message = "agent.components._cor_.kind: no such component; did you mean _core_?"
    assert line("agent=fast", "agent.components._cor_.kind=gru") == message
    kind, seed = lines("agent=fast", "agent.components._core_.kind=gruu", "seed=x")[::-1]
    assert (kind.partition(":")[0], seed.partition(":")[0]) == ("agent.components._core_.kind", "seed")


def test_every_problem_is_reported_at_once():
    words = "py_agent=fsat env=tmze env.windw=3 bogus_name=1 run=a/b trainer.total_timesteps=abc trainer.memory=x --x "
    words += "trainer.bptt_horizon=60 trainer.batch_size=1000 trainer.ppo.gamma=2 trainer.minibatch_size=90"
    message = lines(*words.split())
    assert [text.partition(":")[0] for text in message] == [
        "--x", "py_agent", "env", "env.windw", "bogus_name", "trainer.total_timesteps", "trainer.memory",
        "trainer.ppo.gamma", "run", "trainer.batch_size", "trainer.minibatch_size",
    ]  # fmt: skip
    assert all("\n" not in text for text in message)


def test_settings_below_a_wrong_choice_raise_no_problems_of_their_own():
    assert len(lines("env=recal", "env.delay=3")) == 1
    assert len(lines("py_agent=fsat", "py_agent.option=3")) == 1
    assert len(lines("agent=fsat", "agent.clip_range=3")) == 1


def test_wrong_items_of_a_list_are_named_by_their_index():
    message = "env.wrappers.0: 3 is neither the name of a wrapper nor {name: arguments}"
    assert line("env=gym", "env.id=CartPole-v1", "env.wrappers=[3]") == message
    assert sorted(lines("env.other_resources=[1,{b:2},ore]", "seed=x")) == [
        "env.other_resources.0: 1 is not text",
        "env.other_resources.1: {'b': 2} is not text",
        "seed: 'x' is not a whole number",
    ]


WORDS = st.one_of(
    st.text(max_size=20),
    st.builds(
        "{}={}".format,
        st.sampled_from(sorted({*known_settings(), *GROUPS, "env.kwargs.a", "py_agent.a"})),
        st.text(),
    ),
    st.builds(
        "{}={}".format,
        st.sampled_from(sorted({*known_settings(), "env.kwargs.a.b"})),
        st.sampled_from(
            ["null", "[]", "{}", "{a:1}", "[1,{b:2}]", "true", "-1", "0", "1e400", "nan", "???", "1e99", "'x'"]
        ),
    ),
)


def test_a_setting_of_a_section_that_was_made_a_list_is_a_problem():
    with pytest.raises(SettingsError, match=r"trainer\.prioritized: a list, expected a section"):
        load(["trainer.prioritized=[]", "trainer.prioritized.prio_alpha=0.5"])


@settings(deadline=None)
@given(st.lists(WORDS, max_size=4))
def test_any_command_line_gives_settings_or_a_list_of_problems(words):
    with suppress(SettingsError):
        assert load(words)


@pytest.mark.parametrize("setting", ["trainer.on_nan", "trainer.checkpoint.keep", "x" * 50_000, "env.delay"])
def test_long_names_and_values_do_not_fill_the_screen(setting):
    with pytest.raises(UserError) as caught:
        load(["env=recall", f"{setting}={'y' * 50_000}"])
    assert len(str(caught.value)) < 5000


@pytest.mark.parametrize("name", ["seed", "env", "env.kwargs", "trainer"])
def test_a_value_that_holds_itself_is_one_message(name):
    loop: list = []
    loop.append({"a": loop})
    with pytest.raises(UserError, match="nested more than 50 levels deep, or holds itself"):
        load([], settings={name: {"a": loop}})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["agent=fast", "agent.components=[1,2]"], "agent.components: "),
        (["env=gym", "env.kwargs=[1]"], "env.kwargs: "),
        (["env=gym", "env.kwargs={a:[1]}", "env.kwargs.a.b=1"], "env.kwargs.a: a list, expected a section"),
    ],
)
def test_a_list_in_the_place_of_a_section_is_one_message(words, message):
    assert message in line(*words)


def test_of_a_list_and_a_section_the_last_one_counts():
    assert load(["env=gym", "env.kwargs={a:{b:1}}", "env.kwargs.a=[1]"]).env.kwargs == {"a": [1]}
