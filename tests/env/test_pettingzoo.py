"""PettingZoo agents as rows: episode boundaries of each agent, absent agents, seeds, replays, clear errors."""

from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces

from engram.env import pettingzoo as adapter
from engram.env.block import Buffers, Episodes
from engram.env.settings import PettingZoo
from engram.env.snapshot import restore_buffers, save_buffers
from engram.env.splitmix import episode_seed
from engram.settings import UserError

EARLY = {"a": (0, 4), "b": (0, 2)}  # b leaves after two steps, a after four
LATE = {"a": (0, 4), "b": (2, 4)}  # b joins at step two
BACK = {"a": (0, 5), "b": (0, 1, 3, 5)}  # b leaves after one step and comes back at step three


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "fakes"))


def skirmish(scale=1.0, **kwargs):
    return PettingZoo(module="skirmish", kwargs=kwargs, reward_scale=scale)


def start(settings, env_ids=range(1), seed=7):
    spec = adapter.spec(settings)
    buffers = Buffers.allocate(spec, len(env_ids) * spec.agents)
    block = adapter.block(settings, env_ids, seed, buffers)
    block.reset()
    return block, buffers


def play(block, buffers, steps, actions=2):
    shown, ended = [], []
    for _ in range(steps):
        buffers.actions[...] = actions
        ended.append(Episodes.concatenate([block.step()]))
        shown.append(save_buffers(buffers))
    return shown, ended


def column(shown, name, row):
    return [step[name][row].item() for step in shown]


def assert_same(left, right):
    for a, b in zip(left, right, strict=True):
        for name in a:
            np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def reported(ended):
    return [
        (t, row, ret, length)
        for t, e in enumerate(ended)
        for row, ret, length in zip(e.rows.tolist(), e.returns.tolist(), e.lengths.tolist(), strict=True)
    ]


def test_every_possible_agent_is_a_row():
    spec = adapter.spec(skirmish(table={"a": (0, 3), "b": (0, 3), "c": (1, 3)}))
    assert (spec.agents, spec.name, spec.single_observation_space.shape) == (3, "skirmish", (2,))
    assert spec.single_action_space == spaces.Discrete(3)
    assert spec.agent_names == ("a", "b", "c")


def test_agents_that_end_together_begin_again_in_the_same_step():
    block, buffers = start(skirmish(), range(2))
    assert buffers.starts.all()
    shown, ended = play(block, buffers, 4)
    for row in range(4):
        assert column(shown, "terminals", row) == [False, False, True, False]
        assert column(shown, "starts", row) == [False, False, True, False]
        assert column(shown, "rewards", row) == [2, 2, 2, 2]
        assert [step["observations"][row, 1] for step in shown] == [1, 2, 0, 1]
    assert all(step["alive"].all() for step in shown)
    assert reported(ended) == [(2, row, 6.0, 3) for row in range(4)]
    assert ended[2].stats["score"].tolist() == [3, 3, 3, 3]


def test_agents_truncated_together_keep_their_last_observations():
    block, buffers = start(skirmish(ends="truncated"))
    first = buffers.observations[:, 0].copy()
    shown, _ = play(block, buffers, 3)
    assert shown[2]["truncations"].all()
    assert not shown[2]["terminals"].any()
    np.testing.assert_array_equal(buffers.final_observations, np.stack([first, [3, 3]], axis=1))
    assert buffers.observations[:, 1].tolist() == [0, 0]


def test_a_step_that_terminates_and_truncates_is_a_termination():
    block, buffers = start(skirmish(ends="both"))
    shown, _ = play(block, buffers, 3)
    assert shown[2]["terminals"].all()
    assert not shown[2]["truncations"].any()


def test_an_agent_that_leaves_early_is_not_alive_until_the_next_episode():
    block, buffers = start(skirmish(table=EARLY))
    shown, ended = play(block, buffers, 6)
    assert column(shown, "terminals", 1) == [False, True, False, False, False, True]
    assert column(shown, "starts", 1) == [False, True, False, True, False, True]
    assert column(shown, "alive", 1) == [True, False, False, True, True, False]
    assert column(shown, "rewards", 1) == [2, 2, 0, 0, 2, 2]
    assert [step["observations"][1].any() for step in shown] == [True, False, False, True, True, False]
    assert column(shown, "terminals", 0) == [False, False, False, True, False, False]
    assert all(column(shown, "alive", 0))
    assert reported(ended) == [(1, 1, 4.0, 2), (3, 0, 8.0, 4), (5, 1, 4.0, 2)]


def test_an_agent_truncated_early_keeps_its_last_observation_and_starts_again_without_a_terminal():
    block, buffers = start(skirmish(table=EARLY, ends="truncated"))
    shown, _ = play(block, buffers, 4)
    assert column(shown, "truncations", 1) == [False, True, False, False]
    assert not any(column(shown, "terminals", 1))
    assert column(shown, "starts", 1) == [False, True, False, True]
    assert shown[1]["final_observations"][1, 1] == 2
    assert column(shown, "truncations", 0) == [False, False, False, True]


def test_an_agent_that_joins_late_starts_then_without_a_terminal():
    block, buffers = start(skirmish(table=LATE))
    assert buffers.alive.tolist() == [True, False]
    assert not buffers.observations[1].any()
    shown, ended = play(block, buffers, 4)
    assert column(shown, "alive", 1) == [False, True, True, False]
    assert column(shown, "starts", 1) == [False, True, False, True]
    assert column(shown, "terminals", 1) == [False, False, False, True]
    assert column(shown, "rewards", 1) == [0, 0, 2, 2]
    assert reported(ended) == [(3, 0, 8.0, 4), (3, 1, 4.0, 2)]


def test_an_agent_that_comes_back_starts_then_without_a_terminal():
    block, buffers = start(skirmish(table=BACK))
    shown, ended = play(block, buffers, 5)
    assert column(shown, "alive", 1) == [False, False, True, True, True]
    assert column(shown, "starts", 1) == [True, False, True, False, True]
    assert column(shown, "terminals", 1) == [True, False, False, False, True]
    assert not any(column(shown, "truncations", 1))
    assert reported(ended) == [(0, 1, 2.0, 1), (4, 0, 10.0, 5), (4, 1, 4.0, 2)]


@pytest.mark.parametrize("ends", ["terminated", "truncated"])
@pytest.mark.parametrize("table", [EARLY, LATE, BACK])
def test_starts_mark_every_end_every_first_observation_and_every_new_episode(table, ends):
    block, buffers = start(skirmish(table=table, ends=ends), range(2))
    assert buffers.starts.all()
    alive, shown = buffers.alive.copy(), play(block, buffers, 12)[0]
    for step in shown:
        begun = (step["observations"].reshape(2, 2, 2)[:, 0, 1] == 0).repeat(2)  # agent a shows step 0
        ended = step["terminals"] | step["truncations"]
        np.testing.assert_array_equal(step["starts"], ended | begun | (step["alive"] & ~alive))
        assert alive[ended].all()  # only agents that acted have an end
        alive = step["alive"]


def test_an_environment_that_omits_departed_agents_is_supported():
    block, buffers = start(skirmish(silent=True, table=EARLY))
    shown, ended = play(block, buffers, 4)
    assert column(shown, "truncations", 1) == [False, True, False, False]
    assert column(shown, "truncations", 0) == [False, False, False, True]
    assert shown[3]["final_observations"][0, 1] == 3
    assert reported(ended) == [(1, 1, 2.0, 2), (3, 0, 6.0, 4)]
    assert buffers.starts.all()


def test_rewards_are_scaled_and_reported_returns_are_not():
    block, buffers = start(skirmish(scale=0.5))
    shown, ended = play(block, buffers, 3)
    assert column(shown, "rewards", 0) == [1, 1, 1]
    assert ended[2].returns.tolist() == [6, 6]


def test_only_present_agents_act():
    block, buffers = start(skirmish(table=EARLY))
    shown, _ = play(block, buffers, 4, actions=[0, 1])  # Skirmish itself asserts who acts
    assert column(shown, "rewards", 0) == [0, 0, 0, 0]
    assert column(shown, "rewards", 1) == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda o, r, te, tr, i: r.pop("b"), "b: the reward is missing or None"),
        (
            lambda o, r, te, tr, i: r.update(c=1.0),
            r"there is a reward for c, which is not among the possible agents \(a, b\)",
        ),
        (lambda o, r, te, tr, i: o.update(c=1.0), "there is an observation for c"),
        (lambda o, r, te, tr, i: te.update(b="no"), "b: terminated is 'no', expected a bool"),
        (lambda o, r, te, tr, i: r.update(b=np.ones(2)), "b: the reward is an array"),
        (lambda o, r, te, tr, i: o.update(b=np.ones(3)), r"b: the observation has shape \(3,\), expected \(2,\)"),
        (lambda o, r, te, tr, i: o.pop("b"), "b: among the agents, but without an observation"),
    ],
)
def test_invalid_results_of_a_step_are_refused(change, message):
    block, buffers = start(skirmish(), range(2))
    env = block._envs[1]
    step = env.step

    def changed(actions):
        returned = step(actions)
        change(*returned)
        return returned

    env.step = changed
    with pytest.raises(UserError, match=message) as refused:
        play(block, buffers, 1)
    if "among the agents but" not in message:
        assert "environment 1, at step 1 of the episode with seed" in str(refused.value)


@pytest.mark.parametrize(
    ("agents", "message"), [(None, "the attribute agents is None, expected a list"), (["a", "a"], "an agent twice")]
)
def test_invalid_agents_after_a_step_are_refused(agents, message):
    block, _ = start(skirmish(), range(2))
    env = block._envs[1]
    step = env.step

    def changed(actions):
        returned = step(actions)
        env.agents = agents
        return returned

    env.step = changed
    with pytest.raises(UserError, match=message):
        block.step()


def test_the_same_seed_gives_a_row_the_same_stream_in_any_block():
    together, buffers = start(skirmish(table=EARLY), range(3))
    alone, own = start(skirmish(table=EARLY), range(2, 3))
    for t in range(9):
        for block, rows in ((together, buffers), (alone, own)):
            rows.actions[...] = t % 3
            block.step()
        for name, array in save_buffers(own).items():
            np.testing.assert_array_equal(array, save_buffers(buffers)[name][4:6])
    assert len(set(buffers.observations[[0, 2, 4], 0].tolist())) == 3


def test_each_episode_has_its_own_seed():
    block, buffers = start(skirmish(), range(3, 4))
    secrets = [buffers.observations[0, 0]]
    for _ in range(3):
        play(block, buffers, 3)
        secrets.append(buffers.observations[0, 0])
    expected = [np.random.default_rng(episode_seed(7, 3, k)).random() for k in range(4)]
    np.testing.assert_allclose(secrets, expected, rtol=1e-6)


@pytest.mark.parametrize("table", [EARLY, LATE, BACK, {"a": (0, 5), "b": (0, 5)}])
@pytest.mark.parametrize("ends", ["terminated", "truncated"])
def test_a_restored_block_resumes_exactly(table, ends):
    settings = skirmish(table=table, ends=ends)
    block, buffers = start(settings, range(2))
    states, shown, ended = [], [save_buffers(buffers)], []
    for _ in range(20):
        states.append(block.state())
        played = play(block, buffers, 1)
        shown += played[0]
        ended += played[1]
    for cut in range(12):
        fresh, fresh_buffers = start(settings, range(2))
        play(fresh, fresh_buffers, cut % 3, actions=1)
        assert fresh.restore(states[cut])
        assert restore_buffers(shown[cut], fresh_buffers)
        again, again_ended = play(fresh, fresh_buffers, 8)
        assert_same(again, shown[cut + 1 : cut + 9])
        assert reported(again_ended) == reported(ended[cut : cut + 8])


def test_a_replay_that_differs_is_noticed():
    block, buffers = start(skirmish(table=EARLY))
    play(block, buffers, 3)
    for table in ({"a": (0, 4), "b": (0, 4)}, {"a": (0, 2), "b": (0, 2)}):
        other, other_buffers = start(skirmish(table=table))
        assert not (other.restore(block.state()) and restore_buffers(save_buffers(buffers), other_buffers))


def test_a_nan_raises_with_environment_agent_and_step():
    block, buffers = start(skirmish(bad=("b", 2)), range(4, 6))
    with pytest.raises(
        UserError, match="skirmish: the observation of environment 4, agent 1 is NaN or infinite at step 2"
    ):
        play(block, buffers, 2)


@pytest.mark.parametrize("module", ["skirmish:Skirmish", "skirmish:parallel_env", "skirmish"])
def test_an_environment_is_named_by_module_or_class(module):
    assert adapter.spec(PettingZoo(module=module)).agents == 2


@pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning")  # PettingZoo's own
@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("skirmish_v9", "no module named skirmish_v9"),
        ("pettingzoo.test.example_envs.generated_agents_paralel_v0", "did you mean .*generated_agents_parallel_v0"),
        ("pettingzoo.test.example_envs.generated_agents_parallel_v0", "has no possible_agents"),
        ("pettingzoo.mpe.simple_spread_v3", "needs a package that is not installed: MPE has been moved.*mpe2"),
        ("skirmish:turn_based_env", "neither a module with a function parallel_env nor"),
        ("os:system", "neither a module with a function parallel_env nor"),
        ("collections", "neither a module with a function parallel_env nor"),
    ],
)
def test_settings_that_cannot_be_built_are_explained(module, message):
    with pytest.raises(UserError, match=f"env.module: .*{message}"):
        adapter.spec(PettingZoo(module=module))


def test_a_wrong_argument_is_named():
    with pytest.raises(UserError, match=r"env.kwargs: .*tabel"):
        adapter.spec(skirmish(tabel={}))


def test_agents_with_different_spaces_are_listed():
    with pytest.raises(UserError, match=r"same observation space, but they differ: a, c: Box.*; b: Box.*\(3,\)"):
        adapter.spec(skirmish(table={"a": (0, 3), "b": (0, 3), "c": (0, 3)}, wide="b"))
