"""The built-in worlds: their rules, and that only memory solves the T-maze."""

import numpy as np
import pytest
from mettagrid.map_builder.ascii import AsciiMapBuilder
from pydantic import ValidationError

from engram.env.block import Buffers, Episodes
from engram.env.mettagrid.adapter import block, spec
from engram.env.mettagrid.block import MettagridBlock
from engram.env.mettagrid.simulators import SimulatorFactory
from engram.env.mettagrid.worlds import max_tokens_in_view, world
from engram.env.settings import Arena, Navigation, Small, TMaze

NOOP, NORTH, SOUTH, WEST, EAST = range(5)


def make(settings, envs=1, config=None):
    description = spec(settings)
    buffers = Buffers.allocate(description, envs * description.agents)
    if config is None:
        made = block(settings, range(envs), 0, buffers)
    else:
        made = MettagridBlock(config, range(envs), 0, buffers, "env.num_tokens")
    made.reset()
    return made, buffers


def random_actions(buffers, steps):
    return np.random.default_rng(0).integers(5, size=(steps, len(buffers.actions)))


def tokens(observation, settings):
    """The tokens in use, as (location, feature name, value)."""
    names = {feature.id: feature.name for feature in spec(settings).features}
    return [(at, names[kind], value) for at, kind, value in observation.tolist() if at != 0xFF]


def tags(observation, settings):
    return {kind.removeprefix("tag:") for _, kind, _ in tokens(observation, settings) if kind.startswith("tag:")}


def corridor_walk(settings, envs):
    """Observations [steps, envs, ...] on the way from the start to the junction."""
    made, buffers = make(settings, envs)
    seen = [buffers.observations.copy()]
    buffers.actions[:] = EAST
    for _ in range(settings.corridor + 1):
        assert made.step() is None
        seen.append(buffers.observations.copy())
    return made, buffers, np.array(seen)


@pytest.mark.parametrize("settings", [TMaze(), TMaze(window=3, corridor=2), TMaze(window=9, corridor=12)])
def test_an_agent_that_remembers_the_cue_always_finds_the_right_goal(settings):
    made, buffers, seen = corridor_walk(settings, envs=32)
    buffers.actions[:] = [NORTH if "type:cue_1" in tags(first, settings) else SOUTH for first in seen[0]]
    episodes = Episodes.concatenate([made.step()])
    assert episodes.returns.tolist() == [settings.right_reward] * 32
    assert episodes.stats["goal.right"].tolist() == [1.0] * 32


def test_an_agent_that_always_takes_the_same_goal_reaches_the_ceiling_without_memory():
    made, buffers, _ = corridor_walk(TMaze(), envs=600)
    buffers.actions[:] = NORTH
    episodes = Episodes.concatenate([made.step()])
    assert 0.4 < (episodes.returns > 0).mean() < 0.6
    for share in (episodes.returns[episodes.returns > 0], episodes.returns[episodes.returns < 0]):
        assert len(set(share)) == 1
    assert np.unique(episodes.returns).mean() == pytest.approx(spec(TMaze()).memoryless_ceiling)


@pytest.mark.parametrize("window", [3, 5, 9, 15])
def test_where_the_cue_is_out_of_sight_the_two_mazes_look_the_same(window):
    settings = TMaze(window=window, corridor=window - 1)
    _, _, seen = corridor_walk(settings, envs=16)
    cue_1 = np.array(["type:cue_1" in tags(first, settings) for first in seen[0]])
    assert 0 < cue_1.sum() < 16
    for observations in seen:
        kinds = [tags(observation, settings) for observation in observations]
        assert not any("type:goal" in kind and kind & {"type:cue_1", "type:cue_2"} for kind in kinds)
        if not any(kind & {"type:cue_1", "type:cue_2"} for kind in kinds):
            assert (observations == observations[0]).all()
    assert "type:goal" in tags(seen[-1][0], settings)


def test_the_t_maze_has_no_token_for_time_or_last_action():
    made, buffers = make(TMaze(), envs=8)
    found = set()
    for actions in random_actions(buffers, 100):
        buffers.actions[:] = actions
        made.step()
        found |= {(kind, at == 0xFE) for row in buffers.observations for at, kind, _ in tokens(row, TMaze())}
    kinds = {"agent", "wall", "goal", "cue_1", "cue_2"}
    assert found == {("agent:group", False), ("agent_id", False), *((f"tag:type:{kind}", False) for kind in kinds)}


def test_waiting_and_bumping_do_not_change_t_maze_observations():
    made, buffers = make(TMaze(), envs=4)
    first = buffers.observations.copy()
    for action in (NOOP, NORTH, SOUTH, WEST, NOOP):
        buffers.actions[:] = action
        made.step()
        np.testing.assert_array_equal(buffers.observations, first)


def test_the_two_mazes_are_equally_likely_and_differ_in_cue_and_goals_only():
    simulations = SimulatorFactory(world(TMaze()))
    grids = [np.array(simulations.map(seed)) for seed in range(2)]
    assert sorted(grids[0][grids[0] != grids[1]]) == ["cue_1", "right", "wrong"]
    _, buffers = make(TMaze(), envs=2000)
    cue_1 = (buffers.observations == buffers.observations[0]).all(axis=(1, 2))
    assert abs(cue_1.mean() - 0.5) < 0.05


@pytest.mark.parametrize(
    ("fields", "advice"),
    [
        ({"corridor": 3}, "use corridor 4 or more"),
        ({"window": 11}, "use corridor 10 or more"),
        ({"corridor": 40, "max_steps": 41}, "takes 42 steps"),
        ({"wrong_reward": 1.0}, "must be less than right_reward"),
        ({"right_reward": 0.0}, "greater than 0"),
    ],
)
def test_a_t_maze_that_needs_no_memory_is_refused(fields, advice):
    with pytest.raises(ValidationError, match=advice):
        TMaze(**fields)


@pytest.mark.parametrize(
    ("fields", "limit"), [({}, 40), ({"corridor": 20}, 200), ({"corridor": 20, "max_steps": 30}, 30)]
)
def test_an_episode_of_a_longer_t_maze_has_more_steps(fields, limit):
    assert world(TMaze(**fields)).game.max_steps == limit


def test_a_room_too_small_for_its_objects_is_refused_with_a_sufficient_size():
    with pytest.raises(ValidationError, match=r"leaves 9 cells .* need 12: use size 6 or more"):
        Small(size=5, mines=4, generators=2, altars=2)
    Small(size=6, mines=4, generators=2, altars=2)


@pytest.mark.parametrize("settings", [Small(), Arena(), Navigation()])
def test_a_room_holds_all_its_objects(settings):
    grid = np.array(SimulatorFactory(world(settings)).map(5))
    assert grid.shape == (settings.size, settings.size)
    inside = grid[1:-1, 1:-1]
    assert (grid == "wall").sum() - (inside == "wall").sum() == 4 * (settings.size - 1)
    assert sum(name.startswith("agent") for name in inside.ravel()) == settings.agents
    for name, count in settings.objects().items():
        assert (inside == name).sum() == count


@pytest.mark.parametrize(
    "settings",
    [
        TMaze(),
        Small(size=5, walls=0),
        Small(size=7, window=15, walls=15),
        Arena(agents=60, size=10, mines=2, generators=1, altars=1, walls=0, max_steps=1000),
        Navigation(agents=20, size=9, altars=20, walls=8, refill=5),
    ],
)
def test_observations_never_outgrow_the_tokens_a_world_gives_them(settings):
    made, buffers = make(settings)
    maximum = 0
    for actions in random_actions(buffers, 400):
        buffers.actions[:] = actions
        made.step()
        maximum = max(maximum, (buffers.observations[:, :, 0] != 0xFF).sum(axis=1).max())
    assert 0.5 * max_tokens_in_view(settings) < maximum <= max_tokens_in_view(settings)


def drawn(settings, lines):
    """The same world on a map of one's own."""
    config = world(settings)
    names = {"m": "mine", "g": "generator", "a": "altar"}
    config.game.map_builder = AsciiMapBuilder.Config(map_data=lines, char_to_map_name=names)
    return config


def rewards_of(made, buffers, actions):
    rewards = []
    for buffers.actions[:] in actions:
        made.step()
        rewards.append(round(float(buffers.rewards.sum()), 4))
    return rewards


def test_ore_becomes_a_battery_and_a_battery_a_heart():
    made, buffers = make(Small(), config=drawn(Small(), ["#m#", "g@a", "###"]))
    chain = [NORTH, WEST, EAST]
    assert rewards_of(made, buffers, chain) == [0.1, 0.3, 1.0]
    assert rewards_of(made, buffers, [EAST, WEST]) == [0.0, 0.0]
    assert rewards_of(made, buffers, [NORTH] * 4) == [0.1, 0.1, 0.1, 0.0]


def test_rewards_are_settings():
    settings = Small(ore_reward=0.0, battery_reward=0.0, heart_reward=5.0)
    made, buffers = make(settings, config=drawn(settings, ["#m#", "g@a", "###"]))
    assert rewards_of(made, buffers, [NORTH, WEST, EAST]) == [0.0, 0.0, 5.0]


def test_an_altar_to_navigate_to_gives_one_heart_until_it_is_filled_again():
    settings = Navigation(agents=1, refill=4)
    made, buffers = make(settings, config=drawn(settings, ["###", "@a#", "###"]))
    assert rewards_of(made, buffers, [EAST] * 10) == [1, 0, 0, 0, 1, 0, 0, 0, 1, 0]


def test_an_agent_sees_which_altar_is_full():
    settings = Navigation(agents=1, refill=100)
    made, buffers = make(settings, config=drawn(settings, ["###", "@a#", "###"]))
    altar = 0x34
    assert (altar, "inv:heart", 1) in tokens(buffers.observations[0], settings)
    rewards_of(made, buffers, [EAST])
    assert (altar, "inv:heart", 1) not in tokens(buffers.observations[0], settings)
    assert (altar, "tag:type:altar", 1) in tokens(buffers.observations[0], settings)


def test_a_room_tells_the_time_and_the_last_action():
    made, buffers = make(Small())
    rewards_of(made, buffers, [EAST])
    own = {kind: value for at, kind, value in tokens(buffers.observations[0], Small()) if at == 0xFE}
    assert own.keys() == {"episode_completion_pct", "last_action"}
    assert own["last_action"] == EAST


@pytest.mark.parametrize("settings", [Small(), Arena(agents=4, size=12), Navigation()])
def test_random_play_earns_some_reward(settings):
    made, buffers = make(settings, envs=8)
    total = 0.0
    for actions in random_actions(buffers, settings.max_steps):
        buffers.actions[:] = actions
        made.step()
        total += buffers.rewards.sum()
    assert total / len(buffers.rewards) > 0.05


def test_resources_of_other_worlds_are_features_that_never_appear():
    plain, roomy = spec(Small()), spec(Small(other_resources=["gold", "ore"]))
    names = [feature.name for feature in roomy.features]
    assert set(names) - {feature.name for feature in plain.features} == {"inv:gold", "inv:gold:p1"}
    made, buffers = make(Small(other_resources=["gold"]), envs=2)
    unseen = {feature.id for feature in roomy.features if "gold" in feature.name}
    for actions in random_actions(buffers, 40):
        buffers.actions[:] = actions
        made.step()
        assert not unseen & set(buffers.observations[..., 1].ravel().tolist())
