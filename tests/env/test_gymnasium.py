"""Gymnasium environments as rows: exact episode boundaries, seeded episodes, replays, clear errors."""

import copy
import pickle
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from engram.env import gymnasium as adapter
from engram.env.block import Buffers, Episodes
from engram.env.errors import EnvError
from engram.env.settings import Gym
from engram.env.snapshot import restore_buffers, save_buffers
from engram.env.splitmix import episode_seed
from engram.env.vector import VectorEnv
from engram.settings import UserError


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "fakes"))
    gymnasium.register("engram-test/Walk-v0", "walk:Walk")
    gymnasium.register("engram-test/Chance-v0", "walk:Walk", nondeterministic=True)


def walk(**kwargs):
    return Gym(id="engram-test/Walk-v0", kwargs=kwargs)


def start(settings, env_ids=range(2), seed=7):
    buffers = Buffers.allocate(adapter.spec(settings), len(env_ids))
    block = adapter.block(settings, env_ids, seed, buffers)
    block.reset()
    return block, buffers


def play(block, buffers, policy, steps):
    """What the rows showed at every step, and the episodes that ended."""
    shown, ended = [], []
    for _ in range(steps):
        buffers.actions[...] = policy()
        ended.append(Episodes.concatenate([block.step()]))
        shown.append(save_buffers(buffers))
    return shown, ended


def random_policy(space, rows, seed=0):
    space.seed(seed)
    return lambda: np.stack([space.sample() for _ in range(rows)])


def assert_same(left, right):
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def test_the_spec_names_the_id_and_the_flattened_spaces():
    spec = adapter.spec(walk())
    assert (spec.name, spec.agents, spec.observation_kind) == ("engram-test/Walk-v0", 1, "vector")
    assert spec.single_observation_space.dtype == np.float32
    assert spec.single_action_space == spaces.Discrete(3)


@pytest.mark.parametrize(
    ("name", "size", "action"),
    [
        ("CartPole-v1", 4, spaces.Discrete(2)),
        ("Pendulum-v1", 3, spaces.Box(-2, 2, (1,))),
        ("Taxi-v4", 500, spaces.Discrete(6)),
        ("FrozenLake-v1", 16, spaces.Discrete(4)),
    ],
)
def test_gymnasiums_own_environments_run(name, size, action):
    settings = Gym(id=name, action_masks=False)
    block, buffers = start(settings, range(3))
    assert adapter.spec(settings).single_action_space == action
    assert sum(sum(part.symbols) or part.shape[0] for part in own_parts(buffers.spec)) == size
    shown, _ = play(block, buffers, random_policy(action, 3), 60)
    assert all(step["alive"].all() for step in shown)
    block.close()


def own_parts(spec):
    """Those of the environment itself, without the previous action."""
    return [part for part in spec.all_parts if part.name != "previous_action"]


def test_a_tuple_arrives_as_parts():
    block, buffers = start(Gym(id="Blackjack-v1"), range(3))
    parts = buffers.parts(buffers.observations)
    assert [(part.name, part.kind, part.symbols) for part in own_parts(buffers.spec)] == [
        ("observation/0", "symbols", (32,)),
        ("observation/1", "symbols", (11,)),
        ("observation/2", "symbols", (2,)),
    ]
    player, dealer, ace = gymnasium.make("Blackjack-v1").reset(seed=episode_seed(7, 0, 0))[0]
    assert [int(parts[f"observation/{index}"][0]) for index in range(3)] == [player, dealer, ace]
    play(block, buffers, lambda: 1, 20)
    block.close()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (Gym(id="FrozenLake-v1"), True),
        (Gym(id="Blackjack-v1"), True),
        (Gym(id="CartPole-v1"), False),
    ],
)
def test_the_previous_action_is_shown_where_observations_are_only_symbols(settings, expected):
    assert ("previous_action" in [part.name for part in adapter.spec(settings).parts]) == expected


def test_the_part_of_the_previous_action_is_zero_at_starts():
    block, buffers = start(Gym(id="FrozenLake-v1"), range(3))
    for _ in range(30):
        buffers.actions[:] = [1, 2, 3]
        block.step()
        shown = buffers.parts(buffers.observations)["previous_action"]
        np.testing.assert_array_equal(shown, np.eye(4)[[1, 2, 3]] * ~buffers.starts[:, None])
    block.close()


def test_masks_in_infos_come_with_every_observation():
    block, buffers = start(Gym(id="Taxi-v4"), range(3))
    assert buffers.spec.action_mask
    for step in range(30):
        masks = buffers.parts(buffers.observations)["action_mask"]
        for env, mask in zip(block._envs, masks, strict=True):
            np.testing.assert_array_equal(mask, env.unwrapped.action_mask(env.unwrapped.s), err_msg=str(step))
        buffers.actions[:] = [np.flatnonzero(mask)[0] for mask in masks]
        block.step()
    block.close()


def test_a_row_plays_exactly_what_the_environment_alone_plays():
    block, buffers = start(Gym(), range(4, 6), seed=11)
    env, episode = gymnasium.make("CartPole-v1"), 0
    observation, _ = env.reset(seed=episode_seed(11, 5, 0))
    rng, ended, total = np.random.default_rng(0), 0, 0.0
    for _ in range(120):
        np.testing.assert_array_equal(buffers.observations[1], observation)
        buffers.actions[:] = rng.integers(0, 2, 2)
        episodes = Episodes.concatenate([block.step()])
        observation, reward, terminated, truncated, _ = env.step(int(buffers.actions[1]))
        total += reward
        assert (buffers.rewards[1], buffers.terminals[1], buffers.truncations[1]) == (reward, terminated, truncated)
        assert buffers.starts[1] == (terminated or truncated)
        if terminated or truncated:
            assert episodes.returns[episodes.rows == 1] == [total]
            ended, total, episode = ended + 1, 0.0, episode + 1
            observation, _ = env.reset(seed=episode_seed(11, 5, episode))
    assert ended > 2


def test_a_reset_starts_every_row_with_nothing_ended():
    block, buffers = start(walk())
    play(block, buffers, lambda: 0, 2)
    before = buffers.observations.copy()
    block.reset()
    assert buffers.starts.all()
    assert buffers.alive.all()
    assert not (buffers.terminals | buffers.truncations).any()
    assert not buffers.rewards.any()
    assert (buffers.observations[:, 1] == 0).all()
    assert (buffers.observations[:, 0] != before[:, 0]).all()


def test_a_termination_is_followed_by_the_next_first_observation_in_the_same_step():
    block, buffers = start(walk(length=3))
    shown, ended = play(block, buffers, lambda: 1, 6)
    assert [step["observations"][0, 1] for step in shown] == [1, 2, 0, 1, 2, 0]
    assert [step["terminals"].all() for step in shown] == [False, False, True, False, False, True]
    assert [step["starts"].all() for step in shown] == [False, False, True, False, False, True]
    assert not any(step["truncations"].any() for step in shown)
    assert [step["rewards"].tolist() for step in shown] == [[3, 3]] * 6
    assert [(e.rows.tolist(), e.returns.tolist(), e.lengths.tolist()) for e in ended if len(e)] == [
        ([0, 1], [9, 9], [3, 3])
    ] * 2


def test_a_truncation_keeps_the_true_last_observation():
    block, buffers = start(walk(length=3, ends="truncated"))
    secrets = buffers.observations[:, 0].copy()
    shown, _ = play(block, buffers, lambda: 0, 3)
    np.testing.assert_array_equal(buffers.final_observations, np.stack([secrets, [3, 3]], axis=1))
    assert (buffers.observations[:, 1] == 0).all()
    assert shown[2]["truncations"].all()
    assert shown[2]["starts"].all()
    assert not shown[2]["terminals"].any()


def test_a_step_that_terminates_and_truncates_is_a_termination():
    block, buffers = start(walk(length=2, ends="both"))
    shown, _ = play(block, buffers, lambda: 0, 2)
    assert shown[1]["terminals"].all()
    assert not shown[1]["truncations"].any()


def test_max_steps_truncates():
    block, buffers = start(Gym(id="engram-test/Walk-v0", kwargs={"length": 100}, max_steps=4))
    shown, ended = play(block, buffers, lambda: 0, 4)
    assert shown[3]["truncations"].all()
    assert buffers.final_observations[:, 1].tolist() == [4, 4]
    assert ended[3].lengths.tolist() == [4, 4]


def test_rewards_are_scaled_and_reported_returns_are_not():
    settings = Gym(id="engram-test/Walk-v0", kwargs={"length": 2}, reward_scale=0.1)
    block, buffers = start(settings)
    shown, ended = play(block, buffers, lambda: 2, 2)
    np.testing.assert_allclose(shown[0]["rewards"], [0.4, 0.4])
    assert ended[1].returns.tolist() == [8, 8]


def test_numbers_in_the_last_info_become_stats():
    block, buffers = start(walk(length=2))
    _, ended = play(block, buffers, lambda: 0, 2)
    assert {name: values.tolist() for name, values in ended[1].stats.items()} == {"is_success": [1, 1], "score": [2, 2]}


def test_actions_reach_the_environment_clipped_and_offset():
    block, buffers = start(Gym(id="Pendulum-v1"))
    env = gymnasium.make("Pendulum-v1")
    env.reset(seed=episode_seed(7, 0, 0))
    play(block, buffers, lambda: 50.0, 1)
    np.testing.assert_array_equal(buffers.observations[0], env.step(np.array([2.0], np.float32))[0])


def test_an_action_outside_the_space_is_still_refused_by_the_environment():
    block, buffers = start(Gym())
    with pytest.raises(AssertionError, match="invalid"):
        play(block, buffers, lambda: 2, 1)


def test_the_same_seed_gives_a_row_the_same_stream_in_any_block():
    together, buffers = start(Gym(), range(6))
    apart = [start(Gym(), range(i, i + 1)) for i in range(6)]
    policy = random_policy(spaces.Discrete(2), 6)
    for _ in range(80):
        actions = buffers.actions[:] = policy()
        together.step()
        for i, (block, alone) in enumerate(apart):
            alone.actions[:] = actions[i]
            block.step()
            assert_same({name: array[i : i + 1] for name, array in save_buffers(buffers).items()}, save_buffers(alone))


def test_a_different_seed_gives_a_different_stream():
    assert not np.array_equal(start(Gym(), seed=7)[1].observations, start(Gym(), seed=8)[1].observations)


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Blackjack-v1", "FrozenLake-v1"])
def test_a_restored_block_resumes_exactly(name):
    settings = Gym(id=name, max_steps=15)
    block, buffers = start(settings, range(3))
    space = adapter.spec(settings).single_action_space
    for cut in range(1, 40):
        play(block, buffers, random_policy(space, 3, seed=cut), 1)
        if cut % 3:
            continue
        state, then = block.state(), save_buffers(buffers)
        fresh, fresh_buffers = start(settings, range(3))
        assert fresh.restore(state)
        assert restore_buffers(then, fresh_buffers)
        play_on = [
            play(b, f, random_policy(space, 3, seed=100), 25) for b, f in ((fresh, fresh_buffers), (block, buffers))
        ]
        (left, left_ended), (right, right_ended) = play_on
        for a, b in zip(left, right, strict=True):
            assert_same(a, b)
        assert [e.returns.tolist() for e in left_ended] == [e.returns.tolist() for e in right_ended]
        assert [e.lengths.tolist() for e in left_ended] == [e.lengths.tolist() for e in right_ended]


def test_a_log_with_padding_restores_too():
    block, buffers = start(walk(length=9))
    play(block, buffers, lambda: 1, 4)
    state = block.state()
    state["actions"] = np.pad(state["actions"], [(0, 0), (0, 7), (0, 0)])
    assert start(walk(length=9))[0].restore(state)


@pytest.mark.parametrize("change", [{"drift": 1.0}, {"length": 3}])
def test_a_replay_that_differs_is_noticed(change):
    block, buffers = start(walk(length=9, **{k: v for k, v in change.items() if k == "drift"}))
    play(block, buffers, lambda: 1, 5)
    other, other_buffers = start(walk(**({"length": 9} | change)))
    other.reset()
    assert not (other.restore(block.state()) and restore_buffers(save_buffers(buffers), other_buffers))


def test_a_replay_with_a_different_return_is_noticed():
    block, buffers = start(walk(length=9))
    play(block, buffers, lambda: 1, 5)
    state = block.state()
    state["actions"][0, 2] = 0
    assert not start(walk(length=9))[0].restore(state)


def test_an_environment_that_calls_itself_nondeterministic_has_no_state():
    assert start(Gym(id="engram-test/Chance-v0"))[0].state() is None


@pytest.mark.parametrize(
    ("bad", "step", "message"),
    [
        ("observation", 2, "the observation of environment 5 is NaN or infinite at step 2 "),
        ("observation", 0, "the first observation of environment 5 is NaN or infinite at step 0 "),
        ("reward", 2, "the reward of environment 5 is NaN or infinite at step 2 "),
        ("reward", 3, f"the reward .* at step 3 of the episode with seed {episode_seed(7, 5, 0)}"),
        ("observation", 3, f"the last observation .* at step 3 of the episode with seed {episode_seed(7, 5, 0)}"),
    ],
)
def test_a_nan_raises_with_environment_and_step(bad, step, message):
    settings = walk(ends="truncated", bad=bad, bad_step=step)
    with pytest.raises(UserError, match=f"engram-test/Walk-v0: {message}"):
        play(*start(settings, range(5, 7)), lambda: 0, 3)


def test_a_nan_action_is_named_as_the_cause():
    block, buffers = start(Gym(id="Pendulum-v1"))
    with pytest.raises(UserError, match="the previous action was not finite either"):
        play(block, buffers, lambda: np.nan, 1)


def test_an_observation_that_does_not_fit_its_space_is_refused_at_once():
    with pytest.raises(
        UserError, match=r"engram-test/Walk-v0: environment 0, at step 0 .*: the observation has shape \(3,\)"
    ):
        start(walk(bad="shape"))


@pytest.mark.parametrize("length", [9, 2], ids=["on the way", "at the end"])
def test_an_observation_that_does_not_fit_later_is_named_with_the_environment_and_the_step(length):
    block, buffers = start(walk(bad="shape", bad_step=2, ends="truncated", length=length), range(5, 7))
    place = f"environment 5, at step 2 of the episode with seed {episode_seed(7, 5, 0)}"
    with pytest.raises(UserError, match=rf"^engram-test/Walk-v0: {place}: the observation has shape \(3,\)"):
        play(block, buffers, lambda: 0, 2)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("flag", "terminated is 'no', expected a bool"),
        ("none", "the reward is missing or None, expected a number"),
        ("text", "the reward is '1.0', expected a number"),
        ("array", r"the reward is an array of shape \(2,\), expected one number"),
        ("one in an array", r"the reward is an array of shape \(1,\), expected one number"),
    ],
)
@pytest.mark.parametrize("envs", [1, 3])
def test_an_outcome_that_is_none_is_refused_with_the_environment_and_the_step(bad, message, envs):
    block, buffers = start(walk(bad=bad, bad_step=2, length=9), range(5, 5 + envs))
    place = f"environment 5, at step 2 of the episode with seed {episode_seed(7, 5, 0)}"
    with pytest.raises(UserError, match=rf"^engram-test/Walk-v0: {place}: {message}"):
        play(block, buffers, lambda: 0, 2)


def test_strict_checks_compare_every_observation_with_its_space():
    class Loud(gymnasium.ObservationWrapper):
        observation_space = spaces.Box(0, 1, (2,), np.float64)

        def observation(self, observation):
            return observation

    settings = walk(length=9).model_copy(update={"check": "strict"})
    block, buffers = start(settings)
    play(block, buffers, lambda: 0, 2)
    block._space = Loud.observation_space
    with pytest.raises(
        UserError, match=r"at step 3 .*: the observation has values from .* to 3, outside of its bounds 0 to 1"
    ):
        play(block, buffers, lambda: 0, 1)


def test_an_exception_of_the_environment_passes_with_a_note_of_the_environment_and_the_step():
    block, buffers = start(walk(bad="crash", bad_step=2, length=4), range(5, 7))
    block._steps[0] = lambda action: (np.zeros(2), 0.0, False, False, {})
    with pytest.raises(ZeroDivisionError, match="the walker fell") as caught:
        play(block, buffers, lambda: 0, 2)
    assert caught.value.__notes__ == [f"environment 6, at step 2 of the episode with seed {episode_seed(7, 6, 0)}"]


def test_an_exception_in_the_next_reset_is_noted_with_the_seed_of_that_episode():
    block, buffers = start(walk(length=1))
    block._envs[1].unwrapped.reset = None
    with pytest.raises(TypeError) as caught:
        play(block, buffers, lambda: 0, 1)
    assert caught.value.__notes__ == [f"environment 1, at step 0 of the episode with seed {episode_seed(7, 1, 1)}"]


@pytest.mark.parametrize("max_steps", [None, 50], ids=["by us", "by a wrapper"])
def test_a_step_of_the_old_gym_is_explained(max_steps):
    settings = Gym(id="engram-test/Walk-v0", kwargs={"bad": "old", "bad_step": 1}, max_steps=max_steps)
    with VectorEnv(settings, 2) as env:
        env.reset()
        batch = env.recv()
        env.send(batch, [0, 0])
        with pytest.raises(EnvError) as caught:
            env.recv()
    first, second, *_ = str(caught.value).splitlines()
    assert first == (
        "env gym engram-test/Walk-v0: failed while stepping environments 0-1: step must return observation, reward, "
        "terminated, truncated and info (the old Gym had done for two of them): "
        "ValueError: not enough values to unpack (expected 5, got 4)"
    )
    assert second == f"environment 0, at step 1 of the episode with seed {episode_seed(0, 0, 0)}"


@pytest.mark.parametrize("wrappers", [["mask_velocity"], ["mask_velocity", "TimeAwareObservation"]])
def test_masked_rows_are_what_the_wrapped_environments_show(wrappers):
    settings = Gym(id="CartPole-v1", wrappers=wrappers, max_steps=12)
    block, buffers = start(settings, range(3))
    envs, episodes = [adapter.make(settings) for _ in range(3)], [0, 0, 0]
    shown = [env.reset(seed=episode_seed(7, i, 0))[0] for i, env in enumerate(envs)]
    np.testing.assert_array_equal(buffers.observations, np.stack(shown))
    policy, truncations, saved = random_policy(spaces.Discrete(2), 3), 0, None
    for step in range(60):
        buffers.actions[...] = policy()
        block.step()
        for i, env in enumerate(envs):
            shown[i], _, terminated, truncated, _ = env.step(int(buffers.actions[i]))
            if truncated and not terminated:
                truncations += 1
                np.testing.assert_array_equal(buffers.final_observations[i], shown[i])
            if terminated or truncated:
                episodes[i] += 1
                shown[i], _ = env.reset(seed=episode_seed(7, i, episodes[i]))
        np.testing.assert_array_equal(buffers.observations, np.stack(shown))
        if step == 50:
            saved, before = block.state(), save_buffers(buffers)
    assert truncations > 3
    assert saved is not None
    assert block.restore(saved)
    assert restore_buffers(before, buffers)


@pytest.mark.parametrize("masked", [False, True])
def test_a_cell_of_a_board_is_one_choice_unless_its_parts_are_masked(masked):
    class Board(gymnasium.Env):
        observation_space, action_space = spaces.Discrete(3), spaces.MultiDiscrete([2, 3])

        def reset(self, *, seed=None, options=None):
            return 0, {"action_mask": np.ones(5, np.int8)} if masked else {}

        def step(self, action):
            assert self.action_space.contains(action)
            return 1, float(action.tolist() == [1, 2]), True, False, self.reset()[1]

    spec = adapter.spec_of(Board(), "board", Gym(id="board"))
    assert spec.single_action_space == (spaces.MultiDiscrete([2, 3]) if masked else spaces.Discrete(6))
    assert spec.action_names == (() if masked else ("(0, 0)", "(0, 1)", "(0, 2)", "(1, 0)", "(1, 1)", "(1, 2)"))
    buffers = Buffers.allocate(spec, 2)
    block = adapter.GymBlock([Board(), Board()], "board", Gym(id="board"), range(2), 7, buffers)
    block.reset()
    buffers.actions[:] = [[1, 2], [1, 1]] if masked else [5, 4]
    block.step()
    assert buffers.rewards.tolist() == [1.0, 0.0]


def test_actions_that_a_block_checks_quickly_are_judged_as_gymnasium_does():
    space, plain = spaces.Discrete(3, start=1), spaces.Discrete(3, start=1)
    env = gymnasium.make("CartPole-v1")
    env.action_space = space
    adapter.GymBlock([env], "test", Gym(id="CartPole-v1"), range(1), 0, Buffers.allocate(adapter.spec(Gym()), 1))
    for action in (0, 1, 3, 4, 1.0, True, None, "1", np.int8(1), np.int64(4), np.array(2), np.ones(2, int)):
        assert (action in space) == (action in plain), action
    assert copy.deepcopy(space) == pickle.loads(pickle.dumps(space)) == plain
