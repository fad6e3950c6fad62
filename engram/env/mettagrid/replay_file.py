"""Writes an episode in mettagrid's own replay format, which its viewers read."""

from pathlib import Path
from typing import Any

import numpy as np
from mettagrid.map_builder.map_builder import GameMap
from mettagrid.simulator.replay_log_writer import InMemoryReplayWriter
from mettagrid.simulator.simulator import Simulation

from engram.env.mettagrid.adapter import config_of
from engram.env.mettagrid.simulators import Grid, SimulatorFactory, simulator_seed
from engram.env.settings import MettagridFile, MettagridWorld
from engram.env.splitmix import episode_seed
from engram.settings import UserError


def write_replay(settings: Any, seed: int, actions: np.ndarray, path: Path) -> None:
    """Play the first episode of environment 0 again, with these actions [T, agents], and write it as FILE.json.z."""
    if not isinstance(settings, MettagridWorld | MettagridFile):
        raise UserError(f"--mettagrid: env.kind={settings.kind} is not a mettagrid world: leave this file out")
    config = config_of(settings)
    own = episode_seed(seed, 0, 0)
    writer = InMemoryReplayWriter()
    simulation = _Simulation(config, SimulatorFactory(config).plain_map(own), simulator_seed(own), writer)
    for step_actions in actions:
        simulation._c_sim.actions()[:] = step_actions
        simulation.step()
    path.parent.mkdir(parents=True, exist_ok=True)
    writer._episode_replay.write_replay(str(path))


class _Simulation(Simulation):
    """A simulation on a given map instead of a random one."""

    def __init__(self, config: Any, grid: Grid, seed: int, writer: InMemoryReplayWriter) -> None:
        self._grid = grid
        super().__init__(config, seed, event_handlers=[writer])

    @property
    def resource_names(self) -> list[str]:
        return super().resource_names or ["none"]  # the format refuses an empty list

    def _make_map(self) -> GameMap:
        return GameMap(np.array(self._grid))
