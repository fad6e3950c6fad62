"""The mettagrid adapter: built-in worlds and worlds from a file, and episodes in mettagrid's own replay format."""

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from mettagrid.config.mettagrid_config import MettaGridConfig
from mettagrid.map_builder.map_builder import GameMap
from mettagrid.policy.policy_env_interface import PolicyEnvInterface
from mettagrid.simulator.simulator import Simulation

from engram.env.block import Buffers
from engram.env.errors import explained
from engram.env.mettagrid.block import MettagridBlock
from engram.env.mettagrid.simulators import Grid, SimulatorFactory, max_tokens_seen, simulator_seed, with_margin
from engram.env.mettagrid.tags import TAG, Tags
from engram.env.mettagrid.world_file import read_world
from engram.env.mettagrid.worlds import max_tokens_in_view, world
from engram.env.parts import box
from engram.env.settings import MettagridFile, MettagridWorld, TMaze
from engram.env.spec import EnvSpec, Feature
from engram.env.splitmix import episode_seed
from engram.settings import UserError


def spec(settings: MettagridWorld | MettagridFile) -> EnvSpec:
    if isinstance(settings, MettagridFile):
        with explained(f"env.path: {settings.path} cannot be used"):
            return _spec(settings)
    return _spec(settings)


def _spec(settings: MettagridWorld | MettagridFile) -> EnvSpec:
    config = config_of(settings)
    _check_budget(settings, config)
    interface = PolicyEnvInterface.from_mg_cfg(config)
    tmaze = settings if isinstance(settings, TMaze) else None
    return EnvSpec(
        name=config.label,
        single_observation_space=box(interface.observation_shape, np.dtype(np.uint8)),
        single_action_space=spaces.Discrete(len(interface.action_names)),
        observation_kind="tokens",
        agents=config.game.num_agents,
        window=(interface.obs_height, interface.obs_width),
        features=_features(interface, config),
        action_names=tuple(interface.action_names),
        # Without memory the goal is a coin toss; if that has a negative mean, it is best to reach none.
        memoryless_ceiling=max(0.0, (tmaze.right_reward + tmaze.wrong_reward) / 2) if tmaze else None,
        mean_return_goal=tmaze.right_reward if tmaze else None,
    )


def block(settings: MettagridWorld | MettagridFile, env_ids: range, seed: int, buffers: Buffers) -> MettagridBlock:
    return MettagridBlock(config_of(settings), env_ids, seed, buffers, _budget_option(settings))


def _features(interface: PolicyEnvInterface, config: MettaGridConfig) -> tuple[Feature, ...]:
    """Features, normalised by the largest value they can have in this world; where unknown, by mettagrid's own figure.

    Its figures are the same for all worlds: dividing an inventory of at most 3 by 256 would hide it.
    """
    maxima = {
        "last_action": len(interface.action_names) - 1,
        "agent_id": config.game.num_agents - 1,
    }
    for limit in config.game.agent.inventory.limits.values():
        maxima |= {f"inv:{resource}": limit.max if limit.modifiers else limit.base for resource in limit.resources}
    quantities = tuple(
        Feature(f.id, f.name, float(min(max(maxima[f.name], 1), 255)) if f.name in maxima else f.normalization)
        for f in interface.obs_features
        if f.name != TAG
    )
    return quantities + Tags.of(config.game).features()


def config_of(settings: MettagridWorld | MettagridFile) -> MettaGridConfig:
    return read_world(settings.path) if isinstance(settings, MettagridFile) else world(settings)


def _budget_option(settings: MettagridWorld | MettagridFile) -> str:
    return f"{settings.path}: game.obs.num_tokens" if isinstance(settings, MettagridFile) else "env.num_tokens"


def _check_budget(settings: MettagridWorld | MettagridFile, config: MettaGridConfig) -> None:
    """Raises if the token budget is too small; otherwise the simulator would stop the run, perhaps after hours.

    The maximum of a built-in world is known. A world from a file is played at random for some steps, which also shows
    whether it can be played at all.
    """
    tokens = config.game.obs.num_tokens
    if isinstance(settings, MettagridWorld):
        needed = enough = max_tokens_in_view(settings)
        reason = f"an observation can have {needed}"
    else:
        needed = _tokens_in_play(settings, config)
        enough = with_margin(needed)
        reason = f"an observation in random play had {needed}"
    if tokens < needed:
        raise UserError(f"{_budget_option(settings)}: {tokens} is too few, {reason}: use {enough} or more")


def _tokens_in_play(settings: MettagridFile, config: MettaGridConfig) -> int:
    try:
        return max_tokens_seen(config)
    except Exception as error:  # map builders and the simulator raise errors of many types
        cause = f"{type(error).__name__}: {error}"
        raise UserError(f"env.path: {settings.path}: this world cannot be played: {cause}") from error


def write_replay(settings: Any, seed: int, actions: np.ndarray, path: Path) -> None:
    """Play the first episode of environment 0 again, with these actions [T, agents], and write it as FILE.json.z."""
    from mettagrid.simulator.replay_log_writer import InMemoryReplayWriter  # slow to import, and only used here

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

    def __init__(self, config: Any, grid: Grid, seed: int, writer: Any) -> None:
        self._grid = grid
        super().__init__(config, seed, event_handlers=[writer])

    @property
    def resource_names(self) -> list[str]:
        return super().resource_names or ["none"]  # the format refuses an empty list

    def _make_map(self) -> GameMap:
        return GameMap(np.array(self._grid))
