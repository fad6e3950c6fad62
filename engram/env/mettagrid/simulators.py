"""Makes mettagrid simulators of one world, quickly, and counts the tokens that its observations need.

Every episode needs a new simulator, since they cannot be reset.
"""

import re
from collections.abc import Callable

import mettagrid.config.mettagrid_c_config as conversion
import numpy as np
from mettagrid.config.mettagrid_config import GameConfig, MettaGridConfig
from mettagrid.map_builder.ascii import AsciiMapBuilder
from mettagrid.map_builder.choice_ascii import ChoiceAsciiMapBuilder
from mettagrid.map_builder.map_builder import HasSeed
from mettagrid.map_builder.random_map import RandomMapBuilder
from mettagrid.mettagrid_c import MettaGrid

from engram.env.spec import EMPTY_LOCATION
from engram.settings import UserError

Grid = list[list[str]]  # the object in each cell, by its map name
Maps = Callable[[int], Grid]  # from a seed

_SIMULATOR = 0x2545F491  # gives the simulator a different seed than its map
_AMPLE = 4096  # tokens per observation while counting how many are needed
_EPISODES = 4
_AGENT_STEPS = 2000  # per episode; takes 0.2 s in all


class SimulatorFactory:
    """Converts the world's configuration once, and prepares the parts of its maps that do not depend on the seed."""

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


def max_tokens_seen(config: MettaGridConfig) -> int:
    """The largest number of tokens in one observation, in a few short episodes of random actions."""
    config = config.model_copy(deep=True)
    game = config.game
    game.obs.num_tokens = _AMPLE
    factory = SimulatorFactory(config)
    agents, actions = game.num_agents, len(game.actions.actions())
    observations = np.empty((agents, _AMPLE, 3), np.uint8)
    terminals, truncations = np.zeros((2, agents), np.bool_)
    rewards, (moves, vibes) = np.zeros(agents, np.float32), np.zeros((2, agents), np.int32)
    steps = max(_AGENT_STEPS // agents, 10)
    steps = min(steps, game.max_steps or steps)  # 0: no limit
    random, maximum = np.random.default_rng(0), 0
    for seed in range(_EPISODES):
        simulator = factory.make(seed)
        simulator.set_buffers(observations, terminals, truncations, rewards, moves, vibes)
        for _ in range(steps):
            maximum = max(maximum, int((observations[:, :, 0] != EMPTY_LOCATION).sum(axis=1).max()))
            moves[:] = random.integers(actions, size=agents)
            simulator.step()
    return maximum


def overflow(error: RuntimeError, where: str) -> UserError | None:
    """A readable error if the simulator complains that an observation did not fit; otherwise None."""
    found = re.search(r"token budget exceeded.*budget=(\d+), attempted=(\d+)", str(error))
    if found is None:
        return None
    budget, needed = map(int, found.groups())
    return UserError(f"{where}: an observation needs {needed} tokens, more than {budget}: use {with_margin(needed)}")


def with_margin(tokens: int) -> int:
    """One and a half times as many, rounded up to a multiple of 16."""
    return -(-tokens * 3 // 32) * 16


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
            # Otherwise spawn points are shuffled without a seed.
            maker.shuffle_spawn_indices = np.random.default_rng(seed).shuffle
        return maker.build_for_num_agents(agents).grid.tolist()

    return grid


def _is_agent(name: str) -> bool:
    return name.startswith("agent")
