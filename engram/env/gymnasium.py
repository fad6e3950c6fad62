"""Gymnasium environments: any registered id, one environment a row."""

from difflib import get_close_matches
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from engram.env.block import Buffers, Ended
from engram.env.episode_log import Journal
from engram.env.errors import concerns_arguments, explained
from engram.env.flatten import batch_writer, check_observation, policy_action_space, reader, row_space, writer
from engram.env.settings import Gym
from engram.env.spec import EnvSpec
from engram.env.wrappers import unwrap_rows, wrap
from engram.settings import UserError


def spec(settings: Gym) -> EnvSpec:
    with explained(f"env.id: {settings.id} cannot be used"):
        env = make(settings)
        try:
            observation = row_space(env.observation_space, settings.id)
            action = policy_action_space(env.action_space, settings.id)
        finally:
            env.close()
    return EnvSpec(settings.id, observation.space, action, observation.kind)


def block(settings: Gym, env_ids: range, seed: int, buffers: Buffers) -> "GymBlock":
    return GymBlock(settings, env_ids, seed, buffers)


def make(settings: Gym) -> gymnasium.Env:
    """One environment inside its wrappers, or an error that says what is wrong with the settings."""
    try:
        env = gymnasium.make(
            settings.id, max_episode_steps=settings.max_steps, disable_env_checker=True, **settings.kwargs
        )
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise UserError(f"env.id: {settings.id} needs a package that is not there: {error}") from error
    except gymnasium.error.Error as error:
        raise UserError(f"env.id: {error} {_nearest(settings.id)}") from error
    except TypeError as error:
        if concerns_arguments(error):
            raise UserError(f"env.kwargs: {error}") from error
        raise error.__cause__ or error from None  # what the environment raised: Gymnasium hides where
    _answer_quickly(env.action_space)
    if isinstance(env, TimeLimit) and isinstance(env.env, OrderEnforcing):
        env.env = env.env.env  # asks at every step whether there was a reset: a block begins with one
    return wrap(env, settings.wrappers)


class GymBlock:
    """Environments stepped one after the other; an episode that ends is followed by the next in the same step."""

    def __init__(self, settings: Gym, env_ids: range, seed: int, buffers: Buffers) -> None:
        self._envs, changes = zip(*(unwrap_rows(make(settings)) for _ in env_ids), strict=True)
        self._changes = changes[0]
        self._steps = [env.step for env in self._envs]
        space, self._read = self._envs[0].observation_space, reader(self._envs[0].action_space)
        self._check = partial(check_observation, space)
        self._name = settings.id
        self._write = batch_writer(space, buffers.observations)
        self._write_final = [writer(space, row) for row in buffers.final_observations]
        self._scale = settings.reward_scale
        self._buffers = buffers
        self._journal = Journal(settings.id, env_ids, seed, buffers)

    def reset(self) -> None:
        buffers = self._buffers
        observations = [self._next_episode(i) for i in range(len(self._envs))]
        for observation in observations:
            self._check(self._name, observation)
        self._show(observations)
        buffers.rewards[:] = 0
        buffers.terminals[:] = False
        buffers.truncations[:] = False
        buffers.starts[:] = True
        buffers.alive[:] = True
        self._journal.close_reset()

    def step(self) -> Ended | None:
        buffers, journal = self._buffers, self._journal
        actions = self._read(buffers.actions)
        journal.record()
        journal.lengths += 1
        buffers.terminals[:] = False
        buffers.truncations[:] = False
        buffers.starts[:] = False
        observations: list[Any] = []
        rewards: list[Any] = []
        begun: list[int] = []
        try:
            for i, step in enumerate(self._steps):
                observation, reward, terminated, truncated, info = step(actions[i])
                if terminated or truncated:
                    self._end(i, observation, terminated, info)
                    begun.append(i)
                    observation = self._next_episode(i)
                observations.append(observation)
                rewards.append(reward)
        except Exception as error:
            error.add_note(journal.place(len(observations)))
            raise
        self._show(observations)
        return journal.close_step(np.array(rewards, np.float64).reshape(-1), self._scale, begun)

    def state(self) -> dict[str, np.ndarray] | None:
        made = self._envs[0].spec
        return None if made is not None and made.nondeterministic else self._journal.state()

    def restore(self, state: dict[str, np.ndarray]) -> bool:
        """By playing the running episodes again from their seeds. After False the block must be reset."""
        self._journal.open_replay(state)
        observations = [self._replay(i) for i in range(len(self._envs))]
        if any(observation is None for observation in observations):
            return False
        self._show(observations)
        self._buffers.alive[:] = True
        return self._journal.close_replay(state)

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def _show(self, observations: list[Any]) -> None:
        try:
            self._write(observations)
        except Exception:
            for i, observation in enumerate(observations):
                self._refuse_misfit(i, observation)
            raise
        self._change(self._buffers.observations)

    def _refuse_misfit(self, i: int, observation: Any) -> None:
        """Looks only where an observation could not be written: at every step it would take too long."""
        self._check(f"{self._name}: {self._journal.place(i)}", observation)

    def _change(self, rows: np.ndarray) -> None:
        for change in self._changes:
            rows[...] = change(rows)

    def _next_episode(self, i: int) -> Any:
        """Environment i's first observation of its next episode."""
        return self._envs[i].reset(seed=self._journal.begin(i))[0]

    def _end(self, i: int, observation: Any, terminated: bool, info: dict[str, Any]) -> None:
        if terminated:
            self._buffers.terminals[i] = True
        else:
            self._buffers.truncations[i] = True
            try:
                self._write_final[i](observation)
            except Exception:
                self._refuse_misfit(i, observation)
                raise
            self._change(self._buffers.final_observations[i])
        self._buffers.starts[i] = True
        self._journal.end(i, info)

    def _replay(self, i: int) -> Any:
        """What environment i shows where its log ends, or None if its episode ended before."""
        journal = self._journal
        observation, _ = self._envs[i].reset(seed=journal.seed(i))
        for action in self._read(journal.logged(i)[:, 0]):
            observation, reward, terminated, truncated, _ = self._steps[i](action)
            if terminated or truncated:
                return None
            journal.returns[i] += reward
            journal.lengths[i] += 1
        return observation


def _answer_quickly(space: gymnasium.Space) -> None:
    """Let a range say which actions are valid. CartPole, for one, asks at every step, for a quarter of its time."""
    if type(space) is gymnasium.spaces.Discrete:
        space.contains = range(int(space.start), int(space.start + space.n)).__contains__


def _nearest(name: str) -> str:
    """The registered ids most like this one, whatever their capitals."""
    known = {known.lower(): known for known in gymnasium.registry}
    near = [known[match] for match in get_close_matches(name.partition(":")[2].lower() or name.lower(), known, n=3)]
    prefix = "An id that a package registers when imported is written package:Id, e.g. ale_py:ALE/Pong-v5."
    return f"Nearest: {', '.join(near)}. {prefix}" if near else prefix
