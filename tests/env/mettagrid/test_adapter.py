"""The mettagrid adapter: rows in place, episode ends, seeds and replays."""

import subprocess
import sys

import numpy as np
import pytest
from mettagrid.map_builder.ascii import AsciiMapBuilder
from pydantic import ValidationError

from engram.env.block import Buffers, Episodes
from engram.env.mettagrid.adapter import block, spec
from engram.env.mettagrid.block import MettagridBlock
from engram.env.mettagrid.simulators import SimulatorFactory
from engram.env.mettagrid.worlds import world
from engram.env.settings import Arena, Navigation, Small, TMaze
from engram.env.snapshot import restore_buffers, save_buffers
from engram.env.splitmix import episode_seed
from engram.settings import UserError

NOOP, NORTH, SOUTH, WEST, EAST = range(5)
TINY = Arena(agents=3, size=9, mines=4, generators=4, altars=4, walls=2, window=5, max_steps=13)


def make(settings, env_ids=range(3), seed=0):
    description = spec(settings)
    buffers = Buffers.allocate(description, len(env_ids) * description.agents)
    made = block(settings, env_ids, seed, buffers)
    made.reset()
    return made, buffers


def actions_for(settings, envs, steps, seed=0):
    return np.random.default_rng(seed).integers(5, size=(steps, envs * spec(settings).agents)).astype(np.int32)


def snapshot(buffers):
    """All that a step writes; final observations only where they count."""
    arrays = {name: array.copy() for name, array in buffers.arrays().items()}
    arrays["final_observations"][~arrays["truncations"]] = 0
    return arrays


def play(made, buffers, actions):
    history = []
    for buffers.actions[:] in actions:
        episodes = Episodes.concatenate([made.step()])
        history.append(snapshot(buffers) | {"episode_rows": episodes.rows, "episode_returns": episodes.returns})
    return history


def assert_same(one, other):
    for then, now in zip(one, other, strict=True):
        assert then.keys() == now.keys()
        for name in then:
            np.testing.assert_array_equal(then[name], now[name], err_msg=name)


def test_a_simulator_reads_and_writes_the_rows_in_place():
    made, buffers = make(TINY)
    for env, simulation in made.simulators.items():
        rows = slice(3 * env, 3 * env + 3)
        for name in ("observations", "rewards", "terminals", "truncations", "actions"):
            theirs, ours = getattr(simulation, name)(), getattr(buffers, name)[rows]
            assert theirs.ctypes.data == ours.ctypes.data, name


def test_the_spec_describes_the_rows():
    description = spec(TINY)
    assert description.observation_kind == "tokens"
    assert description.agents == 3
    assert description.window == (5, 5)
    assert description.action_names == ("noop", "move_north", "move_south", "move_west", "move_east")
    assert {"tag:type:wall", "inv:heart", "last_action"} <= {feature.name for feature in description.features}
    assert description.memoryless_ceiling is None
    _, buffers = make(TINY)
    used = buffers.observations[buffers.observations[:, :, 0] != 0xFF]
    assert set(used[:, 1]) <= {feature.id for feature in description.features}


def test_the_t_maze_spec_has_the_best_returns_with_and_without_memory():
    assert spec(TMaze()).memoryless_ceiling == pytest.approx(0.45)
    assert spec(TMaze()).mean_return_goal == 1.0
    assert spec(TMaze(wrong_reward=-3)).memoryless_ceiling == 0.0


def test_equal_seeds_give_equal_rows_and_different_seeds_different_rows():
    actions = actions_for(TINY, envs=3, steps=40)
    first = play(*make(TINY, seed=7), actions)
    assert_same(first, play(*make(TINY, seed=7), actions))
    other = play(*make(TINY, seed=8), actions)
    assert not np.array_equal(first[0]["observations"], other[0]["observations"])


def test_environments_differ_from_each_other_and_from_episode_to_episode():
    made, buffers = make(TINY, range(2))
    first = buffers.observations.copy()
    made.reset()
    assert not np.array_equal(first[:3], first[3:])
    assert not np.array_equal(first, buffers.observations)


def test_a_row_does_not_depend_on_its_block():
    actions = actions_for(TINY, envs=4, steps=40)
    together = play(*make(TINY, range(4)), actions)
    parts = [play(*make(TINY, range(2)), actions[:, :6]), play(*make(TINY, range(2, 4)), actions[:, 6:])]
    for step, left, right in zip(together, *parts, strict=True):
        for name in Buffers.layout(spec(TINY), 1):
            np.testing.assert_array_equal(step[name], np.concatenate([left[name], right[name]]), err_msg=name)


def test_a_truncation_gives_the_true_last_and_the_next_first_observation():
    actions = actions_for(TINY, envs=2, steps=TINY.max_steps)
    made, buffers = make(TINY, range(2), seed=3)
    history = play(made, buffers, actions)
    for env in range(2):
        rows = slice(3 * env, 3 * env + 3)
        observations, rewards = by_hand(TINY, episode_seed(3, env, 0), actions[:, rows])
        np.testing.assert_array_equal([step["observations"][rows] for step in history[:-1]], observations[1:-1])
        np.testing.assert_array_equal([step["rewards"][rows] for step in history], rewards)
        np.testing.assert_array_equal(buffers.final_observations[rows], observations[-1])
        (first,), _ = by_hand(TINY, episode_seed(3, env, 1), actions[:0, rows])
        np.testing.assert_array_equal(buffers.observations[rows], first)
    assert buffers.truncations.all()
    assert buffers.starts.all()
    assert not buffers.terminals.any()


def by_hand(settings, seed, actions):
    """One episode in arrays of its own: the observations [steps + 1, ...] and rewards [steps, ...] it gives, with
    every tag a feature of its own."""
    config = world(settings)
    ids = {feature.name: feature.id for feature in spec(settings).features}
    (tag,) = (feature.id for feature in config.game.id_map().features() if feature.name == "tag")
    tags = [ids[f"tag:{name}"] for name in config.game.id_map().tag_names()]

    def seen():
        tokens = [
            [at, tags[v], 1] if kind == tag else [at, kind, v] for at, kind, v in observation.reshape(-1, 3).tolist()
        ]
        return np.array(tokens, np.uint8).reshape(observation.shape)

    agents, tokens = config.game.num_agents, config.game.obs.num_tokens
    observation, reward = np.zeros((agents, tokens, 3), np.uint8), np.zeros(agents, np.float32)
    flags, (taken, vibes) = np.zeros((2, agents), bool), np.zeros((2, agents), np.int32)
    simulation = SimulatorFactory(config).make(seed)
    simulation.set_buffers(observation, *flags, reward, taken, vibes)
    observations, rewards = [seen()], []
    for taken[:] in actions:
        simulation.step()
        observations.append(seen())
        rewards.append(reward.copy())
    return observations, rewards


def test_flags_and_starts_last_one_step():
    made, buffers = make(TINY)
    assert buffers.starts.all()
    assert buffers.alive.all()
    history = play(made, buffers, actions_for(TINY, 3, 40))
    ends = [bool(step["truncations"].any()) for step in history]
    assert all((step["starts"] == (step["terminals"] | step["truncations"])).all() for step in history)
    assert [step + 1 for step, ended in enumerate(ends) if ended] == [13, 26, 39]
    assert not buffers.starts.any()


def test_reaching_a_goal_is_a_termination_that_keeps_its_reward():
    made, buffers = make(TMaze(), range(8))
    first = buffers.observations.copy()
    *walk, choice = play(made, buffers, [[EAST] * 8] * 5 + [[NORTH] * 8])
    assert not any(step["rewards"].any() or step["terminals"].any() or step["starts"].any() for step in walk)
    assert choice["terminals"].all()
    assert choice["starts"].all()
    assert not choice["truncations"].any()
    assert set(choice["rewards"]) == {np.float32(1.0), np.float32(-0.1)}
    assert choice["episode_rows"].tolist() == list(range(8))
    cue_1, cue_2 = first[choice["rewards"] > 0][0], first[choice["rewards"] < 0][0]
    assert all(np.array_equal(now, cue_1) or np.array_equal(now, cue_2) for now in buffers.observations)


def test_a_goal_reached_with_the_last_step_is_not_a_truncation():
    made, buffers = make(TMaze(max_steps=6))
    *_, last = play(made, buffers, [[EAST] * 3] * 5 + [[SOUTH] * 3])
    assert last["terminals"].all()
    assert not last["truncations"].any()


@pytest.mark.parametrize("settings", [TINY, TMaze(), Small(max_steps=30), Navigation(max_steps=30)])
def test_an_episode_s_return_is_the_sum_of_its_rewards(settings):
    made, buffers = make(settings, range(4))
    sums, lengths, seen = np.zeros(len(buffers.rewards)), np.zeros(len(buffers.rewards)), 0
    for buffers.actions[:] in actions_for(settings, 4, 150, seed=5):
        episodes = Episodes.concatenate([made.step()])
        sums += buffers.rewards
        lengths += 1
        ended = np.flatnonzero(buffers.terminals | buffers.truncations)
        assert episodes.rows.tolist() == ended.tolist()
        np.testing.assert_allclose(episodes.returns, sums[ended], atol=1e-5)
        np.testing.assert_array_equal(episodes.lengths, lengths[ended])
        assert episodes.lengths.dtype == np.int32
        seen += len(ended)
        sums[ended] = lengths[ended] = 0
    assert seen


def test_an_episode_s_stats_are_what_its_return_is_made_of():
    made, buffers = make(TINY, range(8))
    for buffers.actions[:] in actions_for(TINY, 8, TINY.max_steps):
        episodes = Episodes.concatenate([made.step()])
    stats = episodes.stats
    assert stats["ore.gained"].sum() > 0
    assert stats.keys() == {"ore.gained", "battery.gained", "heart.gained"}
    expected = 0.1 * stats["ore.gained"] + 0.3 * stats["battery.gained"] + stats["heart.gained"]
    np.testing.assert_allclose(episodes.returns, expected, atol=1e-5)


@pytest.mark.parametrize("settings", [TINY, TMaze(max_steps=11)])
def test_a_restored_block_resumes_exactly(settings):
    actions = actions_for(settings, 3, 60, seed=1)
    actions[:, ::2] = np.where(actions[:, ::2] == WEST, EAST, actions[:, ::2])  # so that some reach a goal
    made, buffers = make(settings, seed=4)
    states, saved, history = [made.state()], [save_buffers(buffers)], []
    for taken in actions:
        history += play(made, buffers, [taken])
        states.append(made.state())
        saved.append(save_buffers(buffers))
    other, rows = make(settings, seed=4)
    for cut in np.random.default_rng(0).permutation(50):
        assert other.restore(states[cut])
        assert restore_buffers(saved[cut], rows)
        assert_same(history[cut : cut + 8], play(other, rows, actions[cut : cut + 8]))
        assert_same([states[cut + 8]], [other.state()])


def test_a_state_is_a_copy_with_one_entry_per_environment():
    made, buffers = make(TINY, range(4))
    play(made, buffers, actions_for(TINY, 4, 5))
    state = made.state()
    kept = {name: array.copy() for name, array in state.items()}
    assert all(len(array) == 4 for array in state.values())
    assert state["actions"].shape == (4, 5, 3)
    play(made, buffers, actions_for(TINY, 4, 5))
    assert_same([kept], [state])


def test_a_replay_that_differs_from_the_saved_state_is_noticed():
    made, buffers = make(TINY)
    play(made, buffers, actions_for(TINY, 3, 9))
    state, saved = made.state(), save_buffers(buffers)
    saved["observations"][0, 0, 0] ^= 1
    assert made.restore(state)
    assert not restore_buffers(saved, buffers)
    state["returns"][0, 0] += 1
    assert not made.restore(state)


@pytest.mark.parametrize("max_steps", [0, 10**9])
def test_episodes_that_outgrow_the_log_have_no_state(max_steps, monkeypatch):
    monkeypatch.setattr("engram.env.episode_log.MAX_LOGGED_STEPS", 19)
    config = world(TINY)
    config.game.max_steps = max_steps
    buffers = Buffers.allocate(spec(TINY), 3)
    made = MettagridBlock(config, range(1), 0, buffers, "env.num_tokens")
    made.reset()
    play(made, buffers, actions_for(TINY, 1, 20))
    assert made.state() is None
    assert not buffers.truncations.any()


def test_a_block_leaves_the_configuration_as_it_was():
    config = world(TINY)
    before = config.model_dump_json()
    MettagridBlock(config, range(1), 0, Buffers.allocate(spec(TINY), 3), "env.num_tokens").reset()
    assert config.model_dump_json() == before


@pytest.mark.parametrize("settings", [TINY, TMaze(), Arena(), Navigation(), Small()])
def test_too_small_a_token_budget_is_refused(settings):
    enough = spec(settings).single_observation_space.shape[0]
    with pytest.raises(UserError, match=rf"env\.num_tokens: {enough - 1} is too few.* use {enough} or more"):
        spec(settings.model_copy(update={"num_tokens": enough - 1}))
    assert spec(settings.model_copy(update={"num_tokens": 300})).single_observation_space.shape == (300, 3)


def test_an_observation_that_outgrows_its_tokens_names_the_option():
    settings = TINY.model_copy(update={"num_tokens": 12})
    buffers = Buffers.allocate(spec(TINY), 3)
    rows = Buffers(**{**vars(buffers), "observations": np.zeros((3, 12, 3), np.uint8)})
    with pytest.raises(UserError, match=r"env\.num_tokens: an observation needs \d+ tokens, more than 12: use \d+$"):
        block(settings, range(1), 0, rows).reset()


def test_an_observation_that_outgrows_its_tokens_while_playing_names_the_option_too():
    config = world(Small(window=3))
    config.game.obs.num_tokens = 6
    config.game.map_builder = AsciiMapBuilder.Config(map_data=["....#", "@....", "....#"], char_to_map_name={})
    rows = Buffers.allocate(spec(Small()), 1)
    rows = Buffers(**{**vars(rows), "observations": np.zeros((1, 6, 3), np.uint8)})
    made = MettagridBlock(config, range(1), 0, rows, "env.num_tokens")
    made.reset()
    with pytest.raises(UserError, match=r"env\.num_tokens: an observation needs 7 tokens"):
        play(made, rows, [[EAST]] * 6)


@pytest.mark.parametrize("window", [1, 2, 4, 16, 17])
def test_windows_the_simulator_cannot_centre_are_refused(window):
    with pytest.raises(ValidationError, match="window"):
        Small(window=window)


def test_buffers_that_the_simulator_would_corrupt_are_refused():
    buffers = Buffers.allocate(spec(TINY), 3)
    short = Buffers(**{**vars(buffers), "observations": buffers.observations[:, :9].copy()})
    copied = Buffers(**{**vars(buffers), "rewards": np.zeros(6, np.float32)[::2]})
    for bad in (short, copied):
        with pytest.raises(AssertionError):
            block(TINY, range(1), 0, bad)


def test_a_worker_with_mettagrid_does_not_load_torch():
    code = "import sys, engram.env.mettagrid.adapter; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
