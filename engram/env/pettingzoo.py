"""PettingZoo parallel environments: every possible agent is a row, even while it is absent."""

import pkgutil
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
from pettingzoo import ParallelEnv

from engram.env import step_checks
from engram.env.actions import action_converter, action_names, policy_action_space
from engram.env.block import Buffers, Ended, picture
from engram.env.episode_log import EpisodeLog
from engram.env.errors import close_all, concerns_arguments, explained
from engram.env.parts import describe_parts
from engram.env.row_writer import MisfitError, RowWriter, mask_of
from engram.env.settings import PettingZoo, PythonEnv
from engram.env.spec import EnvSpec
from engram.nearest import suggestion
from engram.settings import UserError

PROBE_EPISODES = 20  # their first observations decide whether a small grid of bytes holds symbols or pixels


def spec(settings: PettingZoo) -> EnvSpec:
    with explained(f"env.module: {settings.module} cannot be used"), closing(make(settings)) as env:
        return spec_of(env, settings.module, settings)


def spec_of(env: ParallelEnv, name: str, settings: PettingZoo | PythonEnv) -> EnvSpec:
    agents = env.possible_agents
    space = _shared_space(env.observation_space, agents, "observation")
    actions = policy_action_space(_shared_space(env.action_space, agents, "action"), name)
    parts = describe_parts(space, name, settings.symbols, partial(_first_observations, env))
    names = {"agent_names": tuple(map(str, agents)), "action_names": action_names(env, actions)}
    found = EnvSpec.of_parts(name, parts, actions, agents=len(agents), **names)
    observations, infos = env.reset(seed=0)
    masks = [mask_of(observation, infos.get(agent)) for agent, observation in observations.items()]
    has_masks = settings.action_masks and any(mask is not None for mask in masks)
    return found.with_action_mask() if has_masks else found


def _first_observations(env: ParallelEnv) -> Iterator[Any]:
    for seed in range(PROBE_EPISODES):
        yield from env.reset(seed=seed)[0].values()


def block(settings: PettingZoo, env_ids: range, seed: int, buffers: Buffers) -> "PettingZooBlock":
    envs = [make(settings) for _ in env_ids]
    return PettingZooBlock(envs, settings.module, settings, env_ids, seed, buffers)


def make(settings: PettingZoo) -> ParallelEnv:
    """Makes one environment. Errors name the setting to fix."""
    try:
        env = _factory(settings.module)(**settings.kwargs)
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        hint = ' (PettingZoo\'s own families are extras, e.g. pip install "pettingzoo[butterfly]")'
        raise UserError(
            f"env.module: {settings.module} needs a package that is not installed: {error}{hint}"
        ) from error
    except TypeError as error:
        if concerns_arguments(error):
            raise UserError(f"env.kwargs: {error}") from error
        raise
    if not isinstance(env, ParallelEnv):
        raise UserError(f"env.module: {settings.module} made {env!r}, expected a pettingzoo.ParallelEnv")
    return check_agents(env, f"env.module: {settings.module}")


def check_agents(env: ParallelEnv, where: str) -> ParallelEnv:
    if not getattr(env, "possible_agents", None):
        raise UserError(f"{where} has no possible_agents, expected a list: each agent in it is a row")
    return env


class PettingZooBlock:
    """Steps environments one after the other. Agents may leave early, join late and come back.

    In the step in which an agent leaves, its row has the last reward and a terminal or truncation. From then on the row
    is not alive, and its observation and reward are zero. The first observation of an agent that joins late or comes
    back has `starts` true, and neither a terminal nor a truncation: no episode ended there.
    """

    def __init__(
        self,
        envs: list[ParallelEnv],
        name: str,
        settings: PettingZoo | PythonEnv,
        env_ids: range,
        seed: int,
        buffers: Buffers,
    ) -> None:
        self._envs = envs
        self._agents = list(self._envs[0].possible_agents)
        self._space = space = self._envs[0].observation_space(self._agents[0])
        self._strict = settings.check == "strict"
        self._name, self._scale = name, settings.reward_scale
        self._convert_actions = action_converter(self._envs[0].action_space(self._agents[0]))
        self._writer = RowWriter(space, buffers.spec, buffers.observations)
        self._final_writer = RowWriter(space, buffers.spec, buffers.final_observations)
        self._rewards = np.zeros(len(buffers.rewards), np.float64)
        self._alive = [False] * len(buffers.rewards)
        self._buffers = buffers
        self._log = EpisodeLog(name, env_ids, seed, buffers)

    def reset(self, first_episode: int | None = None) -> None:
        if first_episode is not None:
            self._log.number_from(first_episode)
        self._clear_step()
        for i in range(len(self._envs)):
            self._begin_episode(i, self._log.begin(i))
        self._buffers.rewards[:] = 0
        self._log.close_reset()

    def step(self) -> Ended | None:
        agents = len(self._agents)
        actions = self._convert_actions(self._buffers.actions)
        self._log.record_actions()
        self._clear_step()
        for i in range(len(self._envs)):
            if not self._step_env(i, actions[i * agents : (i + 1) * agents]):
                self._begin_episode(i, self._log.begin(i))
        return self._log.close_step(self._rewards, self._scale)

    def state(self) -> dict[str, np.ndarray] | None:
        return self._log.state()

    def restore(self, state: dict[str, np.ndarray]) -> bool:
        """Replays the running episodes from their seeds. After False the block must be reset."""
        self._log.open_replay(state)
        return all(self._replay(i) for i in range(len(self._envs))) and self._log.reproduces(state)

    def scene(self) -> np.ndarray | None:
        # A ParallelEnv need not have a render mode at all.
        return picture(self._envs[0].render()) if getattr(self._envs[0], "render_mode", None) == "rgb_array" else None

    def where(self) -> str:
        return self._log.describe(self._log.stepping)

    def close(self) -> None:
        close_all(self._envs)

    def _clear_step(self) -> None:
        self._rewards[:] = 0
        self._buffers.terminals[:] = False
        self._buffers.truncations[:] = False
        self._buffers.starts[:] = False

    def _begin_episode(self, i: int, seed: int) -> None:
        env, first = self._envs[i], i * len(self._agents)
        observations, infos = env.reset(seed=seed)
        for row, agent in enumerate(self._agents, first):
            self._buffers.starts[row] = True
            if agent in env.agents:
                self._run_for_row(row, step_checks.check_observed, agent, observations)
                self._write_alive(row, observations[agent], infos.get(agent))
            else:
                self._write_absent(row)

    def _step_env(self, i: int, actions: list[Any]) -> bool:
        """Steps environment i and writes its rows. Returns whether any agent is left."""
        env, first = self._envs[i], i * len(self._agents)
        alive = self._alive[first : first + len(self._agents)]
        self._log.stepping = i
        acting = {agent: action for agent, action, acts in zip(self._agents, actions, alive, strict=True) if acts}
        try:
            observations, rewards, terminations, truncations, infos = env.step(acting)
        except Exception as error:
            error.add_note(self._log.describe(i))
            raise
        returned = (observations, rewards, terminations, truncations, infos)
        try:
            step_checks.check_parallel_step(returned, env.agents, self._agents)
        except MisfitError as error:
            raise UserError(f"{self._name}: {self._log.describe(i)}: {error}: fix or wrap the environment") from None
        for row, agent in enumerate(self._agents, first):
            # An agent that left may be missing from every mapping.
            if agent in acting and (agent in env.agents or agent in observations):
                self._run_for_row(row, step_checks.check_present, "terminated", agent, terminations)
                self._run_for_row(row, step_checks.check_present, "truncated", agent, truncations)
            terminated, truncated = terminations.get(agent, False), truncations.get(agent, False)
            if terminated is not False or truncated is not False:
                self._run_for_row(row, step_checks.check_flag, "terminated", terminated)
                self._run_for_row(row, step_checks.check_flag, "truncated", truncated)
            if agent in infos:
                self._run_for_row(row, step_checks.check_info, infos[agent])
            present = agent in env.agents and not (terminated or truncated)
            if agent in acting:
                if agent in rewards or present or agent in observations:
                    self._run_for_row(row, step_checks.check_reward, rewards.get(agent))
                self._rewards[row] = rewards.get(agent, 0.0)
                self._log.lengths[row] += 1
            if present:
                self._run_for_row(row, step_checks.check_observed, agent, observations)
                self._write_alive(row, observations[agent], infos.get(agent))
                self._buffers.starts[row] = agent not in acting
            elif agent in acting:
                self._leave(row, observations.get(agent), truncated and not terminated, infos.get(agent, {}))
        return any(self._alive[first : first + len(self._agents)])

    def _leave(self, row: int, observation: Any, truncated: bool, info: dict[str, Any]) -> None:
        """Writes the row of an agent whose episode ends in this step."""
        buffers = self._buffers
        if truncated:
            buffers.truncations[row] = True
            if observation is None:  # the previous observation is the best guess
                buffers.final_observations[row] = buffers.observations[row]
            else:
                self._run_for_row(row, self._final_writer.write, row, observation)
        else:
            buffers.terminals[row] = True
        buffers.starts[row] = True
        self._log.end(row, info)
        self._write_absent(row)

    def _write_alive(self, row: int, observation: Any, info: Any) -> None:
        if self._strict:
            self._run_for_row(row, step_checks.check_in_space, self._space, observation)
        self._run_for_row(row, self._writer.write, row, observation)
        if self._buffers.spec.action_mask:
            self._run_for_row(row, self._writer.write_mask, row, mask_of(observation, info))
        self._alive[row] = self._buffers.alive[row] = True

    def _run_for_row(self, row: int, check_or_write: Callable[..., None], *arguments: Any) -> None:
        """Calls a function with values of a row; if one does not fit, the error names the environment and the agent."""
        try:
            check_or_write(*arguments)
        except MisfitError as error:
            env, agent = divmod(row, len(self._agents))
            where = f"{self._name}: {self._log.describe(env)}: {self._agents[agent]}"
            raise UserError(f"{where}: {error}: fix or wrap the environment") from None

    def _write_absent(self, row: int) -> None:
        self._buffers.observations[row] = 0
        self._alive[row] = self._buffers.alive[row] = False

    def _replay(self, i: int) -> bool:
        """Replays environment i's logged actions. Returns False if its episode ended before their end."""
        self._begin_episode(i, self._log.seed(i))
        for actions in self._log.actions(i):
            self._clear_step()
            if not self._step_env(i, self._convert_actions(actions)):
                return False
            self._log.close_step(self._rewards, self._scale)
        return True


def _factory(path: str) -> Callable[..., Any]:
    """A module's `parallel_env`, or the ParallelEnv class named after a colon. Settings can call nothing else."""
    module_name, _, name = path.partition(":")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise  # a package that the module imports
        raise UserError(f"env.module: no module named {module_name}{_nearest(module_name)}") from error
    found: Any = getattr(module, name or "parallel_env", None)
    if isinstance(found, type) and issubclass(found, ParallelEnv):
        return found
    if callable(found) and name in ("", "parallel_env"):
        return found
    raise UserError(
        f"env.module: {path} is neither a module with a function parallel_env nor, as package.module:Class, "
        f"a pettingzoo.ParallelEnv; convert an AEC environment with pettingzoo.utils.aec_to_parallel"
    )


def _shared_space(space_of: Callable[[Any], gymnasium.Space], agents: list[Any], what: str) -> gymnasium.Space:
    """The space that all agents share. They must: one policy acts for all of them."""
    by_space: dict[str, list[Any]] = {}
    for agent in agents:
        by_space.setdefault(str(space_of(agent)), []).append(agent)
    if len(by_space) > 1:
        lines = "; ".join(f"{', '.join(map(str, names))}: {space}" for space, names in by_space.items())
        raise UserError(
            f"env.module: all agents must have the same {what} space, but they differ: {lines}. "
            f"Make them equal in a wrapper, e.g. by padding"
        )
    return space_of(agents[0])


def _nearest(module_name: str) -> str:
    """The module most like this one in the same package."""
    package = module_name.rpartition(".")[0]
    try:
        names = [module.name for module in pkgutil.iter_modules(import_module(package).__path__)] if package else []
    except (ImportError, AttributeError):
        return ""
    return suggestion(module_name, [f"{package}.{name}" for name in names])
