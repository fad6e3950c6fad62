"""A block of mettagrid simulations: the C++ simulator, stepped in place without its layers of Python."""

from collections.abc import Callable, Iterator

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

from engram.env.block import Buffers, Column, Ended, episode_seed
from engram.env.mettagrid.simulators import Simulations
from engram.env.mettagrid.tags import Renaming, Tags
from engram.env.mettagrid.token_budget import overflow

LOGGED_STEPS = 10_000  # the longest episodes that can be gone back to; those without a limit cannot
SAVED = ("observations", "final_observations", "rewards", "terminals", "truncations", "starts", "alive")


class MettagridBlock:
    """Each simulation reads and writes its own rows of the buffers. It cannot be reset: every episode has its own."""

    def __init__(
        self, config: MettaGridConfig, env_ids: range, seed: int, buffers: Buffers, budget_option: str
    ) -> None:
        game, envs = config.game, len(env_ids)
        # The simulator would write past an array with fewer tokens, and to a copy of one that is not contiguous.
        assert buffers.observations.shape == (envs * game.num_agents, game.obs.num_tokens, 3)
        assert all(array.flags.c_contiguous for array in vars(buffers).values())
        self.simulations: dict[int, MettaGrid] = {}  # by environment, in order; so are the next two
        self._steps: dict[int, Callable[[], None]] = {}
        self._game_stats: dict[int, Callable[[str], float | None]] = {}
        self._start = Simulations(config).begin
        self._name_tags = Renaming(Tags.of(game), buffers.observations)  # in all rows; those named already stay so
        self._env_ids, self._seed, self._buffers, self._budget_option = env_ids, seed, buffers, budget_option
        self._agents = game.num_agents
        self._stats = _rewarded_stats(game.agents or [game.agent])
        self._end_stats = [(name, float(least)) for name, least in game.end_episode_on_game_stats.items()]
        self._views = _views(buffers, envs)
        self._flags = (buffers.terminals, buffers.truncations, buffers.starts)
        self._raised = True  # some of them may be
        self._actions = self._per_env(buffers.actions)
        self._rows = np.arange(envs * game.num_agents).reshape(envs, game.num_agents)
        self._episodes = [-1] * envs  # number of the running one
        self._tick = 0  # steps of the block
        self._began = [0] * envs  # tick at which the running episode began
        # What was done at the last ticks, as many as an episode can have; tick t is at t modulo that.
        logged = game.max_steps if game.max_steps <= LOGGED_STEPS else 0
        action = np.uint8 if len(game.actions.actions()) <= 256 else np.int32
        self._log = np.zeros((logged, envs, game.num_agents), action)

    def reset(self) -> None:
        self._raised = True
        for env in range(len(self._env_ids)):
            self._begin(env)
        self._name_tags()
        self._buffers.starts[:] = True
        self._buffers.alive[:] = True

    def step(self) -> Ended | None:
        if len(self._log):
            self._log[self._tick % len(self._log)] = self._actions
        self._tick += 1
        if self._raised:
            for flags in self._flags:
                flags.fill(False)  # the simulator only ever raises them
        try:
            steps = self._steps.values()
            for step in reversed(steps) if self._tick % 2 else steps:  # first what is still in the processor's cache
                step()
        except RuntimeError as error:
            raise overflow(error, self._budget_option) or error from error
        ended = self._ended()
        self._raised = bool(ended)
        told = self._renew(ended) if ended else None
        self._name_tags()
        return told

    def state(self) -> dict[str, np.ndarray] | None:
        """The running episodes' actions, which lead from their seeds to here; None if they are too long to log."""
        if not len(self._log):
            return None
        began = np.array(self._began)
        lengths = self._tick - began
        step, env = np.arange(lengths.max()), np.arange(len(lengths))[:, None]
        log = self._log[(began[:, None] + step) % len(self._log), env]
        log[step >= lengths[:, None]] = 0
        saved = {name: self._per_env(getattr(self._buffers, name)).copy() for name in SAVED}
        return {"episodes": np.array(self._episodes), "lengths": lengths, "log": log, **saved}

    def restore(self, state: dict[str, np.ndarray]) -> bool:
        self._raised = True
        episodes, lengths, log = state["episodes"], state["lengths"], state["log"]
        self._episodes = (episodes - 1).tolist()
        for env, length in enumerate(lengths):
            self._begin(env)
            self._replay(env, log[env, :length])
        self._name_tags()
        self._tick = int(lengths.max())
        began = self._tick - lengths
        self._began = began.tolist()
        envs, steps = np.nonzero(np.arange(self._tick) < lengths[:, None])
        self._log[began[envs] + steps, envs] = log[envs, steps]
        if not np.array_equal(self._per_env(self._buffers.observations), state["observations"]):
            return False
        for name in SAVED:
            self._per_env(getattr(self._buffers, name))[...] = state[name]
        return True

    def close(self) -> None:
        self.simulations.clear()
        self._steps.clear()
        self._game_stats.clear()

    def _begin(self, env: int) -> None:
        """Turn to an environment's next episode: its observations become the first, its rewards and flags 0."""
        self._episodes[env] += 1
        self._began[env] = self._tick
        try:
            simulation = self._start(episode_seed(self._seed, self._env_ids[env], self._episodes[env]))
            simulation.set_buffers(*self._views[env])
        except RuntimeError as error:
            raise overflow(error, self._budget_option) or error from error
        self.simulations[env] = simulation
        self._steps[env] = simulation.step
        self._game_stats[env] = simulation.get_game_stat

    def _ended(self) -> list[int]:
        """Environments whose episode is over: by the simulator's flags, or by a game stat, which is a termination."""
        terminals, truncations = self._buffers.terminals, self._buffers.truncations
        ended = set()
        if np.count_nonzero(terminals) or np.count_nonzero(truncations):
            ended.update(np.flatnonzero((terminals | truncations)[:: self._agents]).tolist())  # agents end together
        for name, least in self._end_stats:
            values = [stat(name) for stat in self._game_stats.values()]
            if values.count(None) < len(values):
                done = [env for env, value in enumerate(values) if value is not None and value >= least]
                rows = self._rows[done]
                terminals[rows] = True
                truncations[rows] = False
                ended.update(done)
        return sorted(ended)

    def _renew(self, ended: list[int]) -> Ended:
        """Begin the next episodes where one ended, and put back what a new simulation wipes."""
        buffers = self._buffers
        rewards, terminals, truncations = (
            array.copy() for array in (buffers.rewards, buffers.terminals, buffers.truncations)
        )
        rows = self._rows[ended].ravel()
        cut = rows[truncations[rows]]
        if len(cut):
            self._name_tags()
            buffers.final_observations[cut] = buffers.observations[cut]
        told = self._summary(ended)
        for env in ended:
            self._begin(env)
        buffers.rewards[:], buffers.terminals[:], buffers.truncations[:] = rewards, terminals, truncations
        buffers.starts[rows] = True
        return told

    def _summary(self, ended: list[int]) -> Ended:
        simulations, agents = [self.simulations[env] for env in ended], range(self._agents)
        rows = [env * self._agents + agent for env in ended for agent in agents]
        returns = [total for simulation in simulations for total in simulation.get_episode_rewards().tolist()]
        lengths = [self._tick - self._began[env] for env in ended for _ in agents]
        stats: dict[str, Column] = {
            name: [simulation.get_agent_stat(agent, name) for simulation in simulations for agent in agents]
            for name in self._stats
        }
        return Ended(rows, returns, lengths, stats)

    def _replay(self, env: int, log: np.ndarray) -> None:
        step = self._steps[env]
        for actions in log:
            self._actions[env] = actions
            step()

    def _per_env(self, rows: np.ndarray) -> np.ndarray:
        """A field of the buffers seen as [environments, agents, ...]."""
        return rows.reshape(-1, self._agents, *rows.shape[1:])


def _views(buffers: Buffers, envs: int) -> list[tuple[np.ndarray, ...]]:
    """The rows of each environment, in the order in which the simulator takes them."""
    vibe_actions = np.zeros_like(buffers.actions)  # always 0: nobody changes vibe
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
    """What an episode is told by: the agents' own stats that their rewards are made of."""
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
