"""New mettagrid simulations of one world, as cheaply as they come: the simulator cannot be reset, only made anew."""

from collections.abc import Callable

import mettagrid.config.mettagrid_c_config as conversion
import numpy as np
from mettagrid.config.mettagrid_config import GameConfig, MettaGridConfig
from mettagrid.map_builder.ascii import AsciiMapBuilder
from mettagrid.map_builder.choice_ascii import ChoiceAsciiMapBuilder
from mettagrid.map_builder.map_builder import HasSeed
from mettagrid.map_builder.random_map import RandomMapBuilder
from mettagrid.mettagrid_c import MettaGrid

Grid = list[list[str]]  # what is in each cell, by the names objects have in maps
Maps = Callable[[int], Grid]  # from a seed

_SIMULATION = 0x2545F491  # tells the seed of a simulation from that of its map


class Simulations:
    """The world's configuration, converted once, and its maps, prepared as far as they do not depend on the seed."""

    def __init__(self, config: MettaGridConfig) -> None:
        game = config.model_copy(deep=True).game  # the conversion changes it
        self._config, self._renames = conversion.convert_to_cpp_game_config(game)
        self._maps = _drawn(game) or _scattered(game) or _generated(game)

    def begin(self, seed: int) -> MettaGrid:
        """The simulation of one episode: its map and all that is random in it follow from the seed."""
        return MettaGrid(self._config, self.map(seed), seed ^ _SIMULATION)

    def map(self, seed: int) -> Grid:
        grid = self._maps(seed)
        return conversion.rename_map_agents(grid, self._renames) if self._renames else grid


def _drawn(game: GameConfig) -> Maps | None:
    """Maps that the configuration draws cell by cell, if each has one place per agent: all of them are kept ready."""
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


def _scattered(game: GameConfig) -> Maps | None:
    """What RandomMapBuilder makes of a seed, cell for cell, without its arrays of strings."""
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


def _generated(game: GameConfig) -> Maps:
    """Any other map, by its own builder."""
    builder, agents = game.map_builder, game.num_agents

    def grid(seed: int) -> Grid:
        if isinstance(builder, HasSeed):
            maker = builder.model_copy(update={"seed": seed}, deep=True).create()
        else:
            maker = builder.create()
            maker.shuffle_spawn_indices = np.random.default_rng(seed).shuffle  # it would draw places without a seed
        return maker.build_for_num_agents(agents).grid.tolist()

    return grid


def _is_agent(name: str) -> bool:
    return name.startswith("agent")
