"""Maps of new simulators: equal to mettagrid's own, always from the seed."""

import numpy as np
import pytest
from mettagrid.map_builder.ascii import AsciiMapBuilder
from mettagrid.map_builder.random_map import RandomMapBuilder

from engram.env.mettagrid.simulators import SimulatorFactory
from engram.env.mettagrid.worlds import world
from engram.env.settings import Arena, Small, TMaze


@pytest.mark.parametrize("border", [0, 1, 3])
@pytest.mark.parametrize("agents", [1, 4])
def test_random_maps_equal_those_of_mettagrid(border, agents):
    config = world(Arena(agents=agents))
    config.game.map_builder = RandomMapBuilder.Config(
        agents=agents, width=11, height=9, border_width=border, objects={"wall": 3, "mine": 2, "altar": 1}
    )
    simulations = SimulatorFactory(config)
    for seed in range(5):
        builder = config.game.map_builder.model_copy(update={"seed": seed}).create()
        theirs = builder.build_for_num_agents(agents).grid.tolist()
        ours = [["agent.agent" if "agent" in name else name for name in row] for row in simulations.map(seed)]
        assert ours == theirs


def test_agents_are_distinguished_in_the_map():
    names = [
        name for row in SimulatorFactory(world(Arena(agents=3))).map(0) for name in row if name.startswith("agent")
    ]
    assert names == ["agent.red.0", "agent.red.1", "agent.red.2"]


def test_ascii_maps_are_built_once():
    simulations = SimulatorFactory(world(TMaze()))
    assert simulations.map(4) is simulations.map(6)
    assert simulations.map(4) is not simulations.map(5)


def test_the_seed_chooses_among_spare_spawn_points():
    config = world(Small())
    config.game.map_builder = AsciiMapBuilder.Config(map_data=["@@@@@", "....."], char_to_map_name={})
    one, other = SimulatorFactory(config), SimulatorFactory(config)
    grids = [one.map(seed) for seed in range(20)]
    assert grids == [other.map(seed) for seed in range(20)]
    assert {sum(name == "agent.agent" for name in grid[0]) for grid in grids} == {1}
    assert len(np.unique(grids, axis=0)) > 1
