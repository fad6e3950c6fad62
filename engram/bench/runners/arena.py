"""The mettagrid world of the arena, many copies of it as rows in one process, with nothing around the simulators."""

import mettagrid.config.mettagrid_c_config as conversion
import numpy as np
from mettagrid.config.mettagrid_config import MettaGridConfig
from mettagrid.mettagrid_c import MettaGrid


class Arena:
    """Rows of `agents` each. `step` writes into the arrays; where an episode has ended, a new one has begun already."""

    def __init__(self, world: str, envs: int, seed: int = 1) -> None:
        config = MettaGridConfig.model_validate_json(world)
        self._builder = config.game.map_builder
        self._config, renames = conversion.convert_to_cpp_game_config(config.model_copy(deep=True).game)
        self._rename = (lambda grid: conversion.rename_map_agents(grid, renames)) if renames else (lambda grid: grid)
        self.agents, self.tokens = config.game.num_agents, config.game.obs.num_tokens
        self.envs, self.rows = envs, envs * self.agents
        self.observations = np.zeros((self.rows, self.tokens, 3), np.uint8)
        self.terminals, self.truncations = np.zeros((2, self.rows), np.bool_)
        self.rewards = np.zeros(self.rows, np.float32)
        self.actions, self._vibes = np.zeros((2, self.rows), np.int32)
        self._seed = seed * 1_000_003

    def use(self, **arrays: np.ndarray) -> None:
        """Write into these arrays instead; before `reset`."""
        vars(self).update(arrays)

    def reset(self) -> np.ndarray:
        self._running = [self._begin(env) for env in range(self.envs)]
        return self.observations

    def step(self, actions: np.ndarray) -> None:
        self.actions[:] = actions
        for simulation in self._running:
            simulation.step()
        ended = (self.terminals | self.truncations)[:: self.agents]
        if ended.any():
            # The simulator cannot be reset, only made anew; that clears the arrays, which still have to say it ended.
            flags = [self.terminals.copy(), self.truncations.copy(), self.rewards.copy()]
            for env in np.flatnonzero(ended).tolist():
                self._running[env] = self._begin(env)
            self.terminals[:], self.truncations[:], self.rewards[:] = flags

    def _begin(self, env: int) -> MettaGrid:
        self._seed += 1
        grid = self._builder.model_copy(update={"seed": self._seed}, deep=True).create()
        cells = grid.build_for_num_agents(self.agents).grid.tolist()
        simulation = MettaGrid(self._config, self._rename(cells), self._seed)
        rows = slice(env * self.agents, (env + 1) * self.agents)
        names = ("observations", "terminals", "truncations", "rewards", "actions", "_vibes")
        simulation.set_buffers(*(getattr(self, name)[rows] for name in names))
        return simulation
