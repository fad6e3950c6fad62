"""A block of mettagrid simulations: steps the C++ simulator directly, in the rows of the buffers."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from mettagrid.config.game_value import (
    AnyGameValue,
    InventoryValue,
    MaxGameValue,
    MinGameValue,
    RatioGameValue,
    Scope,
    StatValue,
    SumGameValue,
)
from mettagrid.config.mettagrid_config import AgentConfig, MettaGridConfig
from mettagrid.mettagrid_c import MettaGrid

from engram.env.block import Buffers, Column, Ended, GridObject, GridScene
from engram.env.episode_log import EpisodeLog
from engram.env.mettagrid.simulators import SimulatorFactory, overflow
from engram.env.mettagrid.tags import TagRenamer, Tags


class MettagridBlock:
    """Each simulator reads and writes its own rows of the buffers. It cannot be reset: every episode has a new one."""

    def __init__(
        self, config: MettaGridConfig, env_ids: range, seed: int, buffers: Buffers, budget_option: str
    ) -> None:
        game, envs = config.game, len(env_ids)
        # The simulator would write past an array with fewer tokens, and into a copy of one that is not contiguous.
        assert buffers.observations.shape == (envs * game.num_agents, game.obs.num_tokens, 3)
        assert all(array.flags.c_contiguous for array in buffers.arrays().values())
        self.simulators: dict[int, MettaGrid] = {}  # by environment, as in the next two
        self._steps: dict[int, Callable[[], None]] = {}
        self._game_stats: dict[int, Callable[[str], float | None]] = {}
        self._make_simulator = SimulatorFactory(config).make
        self._resources = list(game.resource_names)
        self._rename_tags = TagRenamer(Tags.of(game), buffers.observations)  # renaming twice does no harm
        self._buffers, self._budget_option, self._agents = buffers, budget_option, game.num_agents
        self._log = EpisodeLog(config.label, env_ids, seed, buffers, np.float32)  # the simulator sums in float32
        self._stats = _rewarded_stats(game.agents or [game.agent])
        self._end_stats = [(name, float(minimum)) for name, minimum in game.end_episode_on_game_stats.items()]
        self._views = _views(buffers, envs)
        self._flags = (buffers.terminals, buffers.truncations, buffers.starts)
        self._flags_set = True  # whether any of them may be true
        self._rows = np.arange(envs * game.num_agents).reshape(envs, game.num_agents)

    def reset(self, first_episode: int | None = None) -> None:
        if first_episode is not None:
            self._log.number_from(first_episode)
        for env in range(len(self._rows)):
            self._begin(env, self._log.begin(env))
        self._log.clear()
        self._rename_tags()
        self._buffers.starts[:] = True
        self._buffers.alive[:] = True
        self._flags_set = True

    def step(self) -> Ended | None:
        log = self._log
        log.record_actions()
        if self._flags_set:
            for flags in self._flags:
                flags.fill(False)  # the simulator sets flags and never clears them
        try:
            for step in self._steps.values():
                step()
        except RuntimeError as error:
            raise overflow(error, self._budget_option) or error from error
        log.lengths += 1
        log.returns += self._buffers.rewards
        ended = self._ended_envs()
        self._flags_set = bool(ended)
        finished = self._begin_next(ended) if ended else None
        self._rename_tags()
        return finished

    def state(self) -> dict[str, np.ndarray] | None:
        return self._log.state()

    def restore(self, state: dict[str, np.ndarray]) -> bool:
        """Replays the running episodes from their seeds. After False the block must be reset."""
        self._log.open_replay(state)
        for env in range(len(self._rows)):
            self._begin(env, self._log.seed(env))
            self._replay(env)
        self._rename_tags()
        self._buffers.alive[:] = True
        self._flags_set = True
        return self._log.reproduces(state)

    def scene(self) -> GridScene:
        return grid_scene(self.simulators[0], self._resources)

    def where(self) -> None:
        return None

    def close(self) -> None:
        self.simulators.clear()
        self._steps.clear()
        self._game_stats.clear()

    def _begin(self, env: int, seed: int) -> None:
        """Starts an episode: writes its first observations, and sets rewards, terminals and truncations to 0."""
        try:
            simulator = self._make_simulator(seed)
            simulator.set_buffers(*self._views[env])
        except RuntimeError as error:
            raise overflow(error, self._budget_option) or error from error
        self.simulators[env] = simulator
        self._steps[env] = simulator.step
        self._game_stats[env] = simulator.get_game_stat

    def _ended_envs(self) -> list[int]:
        """Environments whose episode is over: by the simulator's flags, or by a game stat, which is a termination."""
        terminals, truncations = self._buffers.terminals, self._buffers.truncations
        ended = set()
        if np.count_nonzero(terminals) or np.count_nonzero(truncations):
            ended.update(np.flatnonzero((terminals | truncations)[:: self._agents]).tolist())  # agents end together
        for name, minimum in self._end_stats:
            values = [stat(name) for stat in self._game_stats.values()]
            if values.count(None) < len(values):
                reached = [env for env, value in enumerate(values) if value is not None and value >= minimum]
                rows = self._rows[reached]
                terminals[rows] = True
                truncations[rows] = False
                ended.update(reached)
        return sorted(ended)

    def _begin_next(self, ended: list[int]) -> Ended:
        """Begins the next episodes of these environments, and restores the outcome that new simulators overwrite."""
        buffers = self._buffers
        outcome = (buffers.rewards, buffers.terminals, buffers.truncations)
        saved = [array.copy() for array in outcome]
        rows = self._rows[ended].ravel()
        truncated = rows[buffers.truncations[rows]]
        if len(truncated):
            self._rename_tags()
            buffers.final_observations[truncated] = buffers.observations[truncated]
        finished = self._log.finish(rows.tolist(), self._episode_stats(ended))
        for env in ended:
            self._begin(env, self._log.begin(env))
        for array, values in zip(outcome, saved, strict=True):
            array[:] = values
        buffers.starts[rows] = True
        return finished

    def _episode_stats(self, ended: list[int]) -> dict[str, Column]:
        simulators, agents = [self.simulators[env] for env in ended], range(self._agents)
        return {
            name: [simulator.get_agent_stat(agent, name) for simulator in simulators for agent in agents]
            for name in self._stats
        }

    def _replay(self, env: int) -> None:
        log, rows, step = self._log, self._rows[env], self._steps[env]
        for actions in log.actions(env):
            self._buffers.actions[rows] = actions
            step()
            log.lengths[rows] += 1
            log.returns[rows] += self._buffers.rewards[rows]


def grid_scene(simulator: MettaGrid, resources: Sequence[str]) -> GridScene:
    """Everything on the grid of a simulator, as it is now."""
    objects = [
        GridObject(
            kind=item["type_name"],
            row=item["r"],
            column=item["c"],
            agent=item.get("agent_id"),
            inventory={resources[number]: count for number, count in item["inventory"].items()},
        )
        for item in simulator.grid_objects().values()
    ]
    return GridScene(simulator.map_height, simulator.map_width, objects)


def _views(buffers: Buffers, envs: int) -> list[tuple[np.ndarray, ...]]:
    """The rows of each environment, in the order of the simulator's `set_buffers`."""
    vibe_actions = np.zeros_like(buffers.actions)  # always 0: policies never change vibe
    fields = (
        buffers.observations,
        buffers.terminals,
        buffers.truncations,
        buffers.rewards,
        buffers.actions,
        vibe_actions,
    )
    agents = len(buffers.rewards) // envs
    return [tuple(field[env * agents : (env + 1) * agents] for field in fields) for env in range(envs)]


def _rewarded_stats(agents: list[AgentConfig]) -> list[str]:
    """The stats reported per episode: those that the agents' rewards are computed from."""
    values = (reward.reward for agent in agents for reward in agent.rewards.values())
    return [*dict.fromkeys(name for value in values for name in _stats_in(value))]


def _stats_in(value: AnyGameValue) -> Iterator[str]:
    if isinstance(value, StatValue) and value.scope == Scope.AGENT:
        yield value.name
    elif isinstance(value, InventoryValue):
        yield f"{value.item}.gained"
    elif isinstance(value, SumGameValue | MaxGameValue | MinGameValue):
        for part in value.values:
            yield from _stats_in(part)
    elif isinstance(value, RatioGameValue):
        yield from _stats_in(value.numerator)
        yield from _stats_in(value.denominator)
