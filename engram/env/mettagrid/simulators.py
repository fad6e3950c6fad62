"""Makes mettagrid simulators of one world, quickly: every episode needs a new one, since they cannot be reset."""

from collections.abc import Callable

import mettagrid.config.mettagrid_c_config as conversion
import numpy as np
from mettagrid.config.mettagrid_config import GameConfig, MettaGridConfig
from mettagrid.map_builder.ascii import AsciiMapBuilder
from mettagrid.map_builder.choice_ascii import ChoiceAsciiMapBuilder
from mettagrid.map_builder.map_builder import HasSeed
from mettagrid.map_builder.random_map import RandomMapBuilder
from mettagrid.mettagrid_c import MettaGrid

Grid = list[list[str]]  # the object in each cell, by its map name
Maps = Callable[[int], Grid]  # from a seed

_SIMULATOR = 0x2545F491  # gives the simulator a different seed than its map


class SimulatorFactory:
    """Converts the world's configuration once, and prepares whatever in its maps does not depend on the seed."""

    def __init__(self, config: MettaGridConfig) -> None:
        game = config.model_copy(deep=True).game  # the conversion modifies it
        self._config, self._renames = conversion.convert_to_cpp_game_config(game)
        self._maps = _ascii_maps(game) or _random_maps(game) or _built_maps(game)

    def make(self, seed: int) -> MettaGrid:
        """A simulator for one episode. The seed determines its map and all its random numbers."""
        return MettaGrid(self._config, self.map(seed), simulator_seed(seed))

    def map(self, seed: int) -> Grid:
        grid = self.plain_map(seed)
        return conversion.rename_map_agents(grid, self._renames) if self._renames else grid

    def plain_map(self, seed: int) -> Grid:
        """The map before agents are renamed to what the simulator calls them."""
        return self._maps(seed)


def simulator_seed(episode_seed: int) -> int:
    """The seed of an episode's simulator; that of its map is `episode_seed` itself."""
    return episode_seed ^ _SIMULATOR


def _ascii_maps(game: GameConfig) -> Maps | None:
    """Maps given cell by cell, parsed once; None if there are others or spawn points do not match the agents."""
    builder = game.map_builder
    if type(builder) is ChoiceAsciiMapBuilder.Config:
        options = builder.map_options
    elif type(builder) is AsciiMapBuilder.Config:
        options = [builder.map_data]
    else:
        return None
    names = builder.char_to_map_name
    if any(cell not in names for option in options for row in option for cell in row):
        return None
    grids = [[[names[cell] for cell in row] for row in option] for option in options]
    if any(sum(_is_agent(name) for row in grid for name in row) != game.num_agents for grid in grids):
        return None
    return lambda seed: grids[seed % len(grids)]


def _random_maps(game: GameConfig) -> Maps | None:
    """The same maps as RandomMapBuilder's, cell for cell, without its slow arrays of strings."""
    builder = game.map_builder
    if type(builder) is not RandomMapBuilder.Config or builder.agents != game.num_agents:
        return None
    width, height = builder.width - 2 * builder.border_width, builder.height - 2 * builder.border_width
    counts = [*builder.objects.values(), builder.agents]
    if min(width, height) < 1 or width * height < sum(counts) or any(map(_is_agent, builder.objects)):
        return None
    names = [*builder.objects, "agent.agent", "empty"]
    codes = np.repeat(np.arange(len(names)), [*counts, width * height - sum(counts)])
    side = [builder.border_object] * builder.border_width
    edge = [[builder.border_object] * builder.width] * builder.border_width

    def grid(seed: int) -> Grid:
        shuffled = codes.copy()
        np.random.default_rng(seed).shuffle(shuffled)
        cells = [names[code] for code in shuffled.tolist()]
        return edge + [side + cells[at : at + width] + side for at in range(0, len(cells), width)] + edge

    return grid


def _built_maps(game: GameConfig) -> Maps:
    """Any other map, from its own builder."""
    builder, agents = game.map_builder, game.num_agents

    def grid(seed: int) -> Grid:
        if isinstance(builder, HasSeed):
            maker = builder.model_copy(update={"seed": seed}, deep=True).create()
        else:
            maker = builder.create()
            maker.shuffle_spawn_indices = np.random.default_rng(
                seed
            ).shuffle  # otherwise spawn points are shuffled without a seed
        return maker.build_for_num_agents(agents).grid.tolist()

    return grid


def _is_agent(name: str) -> bool:
    return name.startswith("agent")
