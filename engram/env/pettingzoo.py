"""PettingZoo parallel environments: every possible agent is a row, also while it is not there."""

import pkgutil
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
from pettingzoo import ParallelEnv

from engram.env.block import Buffers, Ended
from engram.env.episode_log import Journal
from engram.env.errors import concerns_arguments, explained
from engram.env.flatten import check_observation, policy_action_space, reader, row_space, writer
from engram.env.settings import PettingZoo
from engram.env.spec import EnvSpec
from engram.nearest import suggestion
from engram.settings import UserError


def spec(settings: PettingZoo) -> EnvSpec:
    name = settings.module
    with explained(f"env.module: {name} cannot be used"):
        env = make(settings)
        try:
            agents = env.possible_agents
            observations = row_space(_shared_space(env.observation_space, agents, "observation"), name)
            actions = policy_action_space(_shared_space(env.action_space, agents, "action"), name)
        finally:
            env.close()
    return EnvSpec(name, observations.space, actions, observations.kind, agents=len(agents))


def block(settings: PettingZoo, env_ids: range, seed: int, buffers: Buffers) -> "PettingZooBlock":
    return PettingZooBlock(settings, env_ids, seed, buffers)


def make(settings: PettingZoo) -> ParallelEnv:
    """One environment, or an error that says what is wrong with the settings."""
    try:
        env = _factory(settings.module)(**settings.kwargs)
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        hint = ' (PettingZoo\'s own families are extras, e.g. pip install "pettingzoo[butterfly]")'
        raise UserError(f"env.module: {settings.module} needs a package that is not there: {error}{hint}") from error
    except TypeError as error:
        if concerns_arguments(error):
            raise UserError(f"env.kwargs: {error}") from error
        raise
    if not isinstance(env, ParallelEnv):
        raise UserError(f"env.module: {settings.module} made {env!r}, expected a pettingzoo.ParallelEnv")
    if not getattr(env, "possible_agents", None):
        raise UserError(f"env.module: {settings.module} has no possible_agents, which say how many rows there are")
    return env


class PettingZooBlock:
    """Environments stepped one after the other. Their agents may leave early, come late and come back.

    An agent that leaves has its last reward and its terminal (or truncation) on that step; from it on its row waits:
    not alive, observation and reward zero. When it comes in again, with the next episode or before, the row has a start
    and once more a terminal, so that nothing is carried over from the wait.
    """

    def __init__(self, settings: PettingZoo, env_ids: range, seed: int, buffers: Buffers) -> None:
        self._envs = [make(settings) for _ in env_ids]
        self._agents = list(self._envs[0].possible_agents)
        space = self._envs[0].observation_space(self._agents[0])
        self._name, self._scale = settings.module, settings.reward_scale
        self._check = partial(check_observation, space, settings.module)
        self._read = reader(self._envs[0].action_space(self._agents[0]))
        self._write = [writer(space, row) for row in buffers.observations]
        self._write_final = [writer(space, row) for row in buffers.final_observations]
        self._rewards = np.zeros(len(buffers.rewards), np.float64)
        self._alive = [False] * len(buffers.rewards)
        self._buffers = buffers
        self._journal = Journal(settings.module, env_ids, seed, buffers)

    def reset(self) -> None:
        buffers = self._buffers
        for i in range(len(self._envs)):
            self._begin(i, self._journal.begin(i))
        buffers.rewards[:] = 0
        buffers.terminals[:] = False
        buffers.truncations[:] = False
        self._journal.close_reset()

    def step(self) -> Ended | None:
        buffers, journal, count = self._buffers, self._journal, len(self._agents)
        actions = self._read(buffers.actions)
        journal.record()
        self._clear_flags()
        begun = []
        for i in range(len(self._envs)):
            if not self._advance(i, actions[i * count : (i + 1) * count]):
                begun.append(i)
                self._begin(i, journal.begin(i))
                rows = slice(i * count, (i + 1) * count)
                buffers.terminals[rows] = ~buffers.truncations[rows]
        return journal.close_step(self._rewards, self._scale, begun)

    def state(self) -> dict[str, np.ndarray] | None:
        return self._journal.state()

    def restore(self, state: dict[str, np.ndarray]) -> bool:
        """By playing the running episodes again from their seeds. After False the block must be reset."""
        self._journal.open_replay(state)
        return all(self._replay(i) for i in range(len(self._envs))) and self._journal.close_replay(state)

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def _clear_flags(self) -> None:
        self._rewards[:] = 0
        self._buffers.terminals[:] = False
        self._buffers.truncations[:] = False
        self._buffers.starts[:] = False

    def _begin(self, i: int, seed: int) -> None:
        env, first = self._envs[i], i * len(self._agents)
        observations, _ = env.reset(seed=seed)
        for row, agent in enumerate(self._agents, first):
            self._buffers.starts[row] = True
            if agent in env.agents:
                self._check(observations[agent])
                self._show(row, observations[agent])
            else:
                self._hide(row)

    def _advance(self, i: int, actions: list[Any]) -> bool:
        """Step environment i and write its rows; whether anyone is left in it."""
        env, first = self._envs[i], i * len(self._agents)
        alive = self._alive[first : first + len(self._agents)]
        acting = {agent: action for agent, action, acts in zip(self._agents, actions, alive, strict=True) if acts}
        observations, rewards, terminations, truncations, infos = env.step(acting)
        for row, agent in enumerate(self._agents, first):
            terminated, truncated = terminations.get(agent, False), truncations.get(agent, False)
            present = agent in env.agents and not (terminated or truncated)
            if agent in acting:
                self._rewards[row] = rewards.get(agent, 0.0)
                self._journal.lengths[row] += 1
            if present:
                self._show(row, self._observation(agent, observations))
                if agent not in acting:
                    self._buffers.starts[row] = self._buffers.terminals[row] = True
            elif agent in acting:
                self._leave(row, observations.get(agent), truncated and not terminated, infos.get(agent, {}))
        return any(self._alive[first : first + len(self._agents)])

    def _observation(self, agent: Any, observations: dict[Any, Any]) -> Any:
        if agent not in observations:
            raise UserError(
                f"{self._name}: {agent} is among the agents but has no observation: fix the environment's step"
            )
        return observations[agent]

    def _leave(self, row: int, observation: Any, truncated: bool, info: dict[str, Any]) -> None:
        buffers = self._buffers
        if truncated:
            buffers.truncations[row] = True
            if observation is None:  # the one before is the best guess at what the episode was cut off in
                buffers.final_observations[row] = buffers.observations[row]
            else:
                self._write_final[row](observation)
        else:
            buffers.terminals[row] = True
        buffers.starts[row] = True
        self._journal.end(row, info)
        self._hide(row)

    def _show(self, row: int, observation: Any) -> None:
        self._write[row](observation)
        self._alive[row] = self._buffers.alive[row] = True

    def _hide(self, row: int) -> None:
        self._buffers.observations[row] = 0
        self._alive[row] = self._buffers.alive[row] = False

    def _replay(self, i: int) -> bool:
        """Whether environment i could be brought to where its log ends."""
        self._begin(i, self._journal.seed(i))
        for actions in self._journal.logged(i):
            self._clear_flags()
            if not self._advance(i, self._read(actions)):
                return False
            self._journal.close_step(self._rewards, self._scale, [])
        return True


def _factory(path: str) -> Callable[..., Any]:
    """`parallel_env` of a module, or the ParallelEnv class named after a colon. Settings can call nothing else."""
    module_name, _, name = path.partition(":")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise UserError(f"env.module: there is no module {module_name}{_nearest(module_name)}") from error
    found: Any = getattr(module, name or "parallel_env", None)
    if isinstance(found, type) and issubclass(found, ParallelEnv):
        return found
    if callable(found) and name in ("", "parallel_env"):
        return found
    raise UserError(
        f"env.module: {path} is neither a module with a function parallel_env nor, as package.module:Class, "
        f"a pettingzoo.ParallelEnv; an AEC environment is turned into one by pettingzoo.utils.aec_to_parallel"
    )


def _shared_space(space_of: Callable[[Any], gymnasium.Space], agents: list[Any], what: str) -> gymnasium.Space:
    """The space that all agents have; one policy acts for all of them."""
    by_space: dict[str, list[Any]] = {}
    for agent in agents:
        by_space.setdefault(str(space_of(agent)), []).append(agent)
    if len(by_space) > 1:
        lines = "; ".join(f"{', '.join(map(str, who))}: {space}" for space, who in by_space.items())
        raise UserError(
            f"env.module: all agents must have the same {what} space, but they differ: {lines}. "
            f"Make them alike in a wrapper, e.g. by padding"
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
