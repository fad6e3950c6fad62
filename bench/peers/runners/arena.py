"""The arena: several mettagrid simulators as rows in one process, stepped in a bare loop."""

import mettagrid.config.mettagrid_c_config as conversion
import numpy as np
from mettagrid.config.mettagrid_config import MettaGridConfig
from mettagrid.mettagrid_c import MettaGrid


class ArenaRows:
    """One row per agent. `step` writes into the arrays; where an episode ended, they hold the start of the next one."""

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
        self.starts = np.ones(self.rows, np.bool_)
        self.actions, self._vibes = np.zeros((2, self.rows), np.int32)
        self._seed = seed * 1_000_003

    def use(self, **arrays: np.ndarray) -> None:
        """Write into these arrays from now on; call it before `reset`."""
        vars(self).update(arrays)

    def reset(self) -> np.ndarray:
        self._running = [self._create(env) for env in range(self.envs)]
        return self.observations

    def step(self, actions: np.ndarray) -> None:
        self.actions[:] = actions
        for simulation in self._running:
            simulation.step()
        self.starts = self.terminals | self.truncations
        ended = self.starts[:: self.agents]
        if ended.any():
            # A simulator cannot be reset, only created again. That clears the arrays, so their content is restored.
            saved = [self.terminals.copy(), self.truncations.copy(), self.rewards.copy()]
            for env in np.flatnonzero(ended).tolist():
                self._running[env] = self._create(env)
            self.terminals[:], self.truncations[:], self.rewards[:] = saved

    def _create(self, env: int) -> MettaGrid:
        self._seed += 1
        grid = self._builder.model_copy(update={"seed": self._seed}, deep=True).create()
        cells = grid.build_for_num_agents(self.agents).grid.tolist()
        simulation = MettaGrid(self._config, self._rename(cells), self._seed)
        rows = slice(env * self.agents, (env + 1) * self.agents)
        names = ("observations", "terminals", "truncations", "rewards", "actions", "_vibes")
        simulation.set_buffers(*(getattr(self, name)[rows] for name in names))
        return simulation
