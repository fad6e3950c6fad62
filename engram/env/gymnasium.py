"""Gymnasium environments: any registered id, one environment a row."""

from contextlib import closing
from difflib import get_close_matches
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from engram.env.actions import action_converter, action_names, policy_action_space, random_play
from engram.env.block import Buffers, Ended, picture
from engram.env.episode_log import EpisodeLog
from engram.env.errors import close_all, concerns_arguments, explained
from engram.env.parts import describe_parts
from engram.env.row_writer import MisfitError, RowWriter, mask_of
from engram.env.settings import Gym, PythonEnv
from engram.env.spec import EnvSpec
from engram.env.step_checks import as_rewards, check_flag, check_in_space, check_info
from engram.env.wrappers import only_symbols, unwrap_rows, with_previous_action, wrap
from engram.settings import UserError

PROBE_STEPS = 200  # observations that decide whether a small grid of bytes holds symbols or pixels

EXTRA = ("popgym:", "minigrid:")  # installed with the extra `tasks`


def spec(settings: Gym) -> EnvSpec:
    with explained(f"env.id: {settings.id} cannot be used"), closing(make(settings)) as env:
        return spec_of(env, settings.id, settings)


def spec_of(env: gymnasium.Env, name: str, settings: Gym | PythonEnv) -> EnvSpec:
    for attribute in ("observation_space", "action_space"):
        space = getattr(env, attribute, None)
        if not isinstance(space, spaces.Space):
            raise UserError(f"{name}: {attribute} is {space}, expected an instance of a gymnasium space")
    board_game, env = only_symbols(env.observation_space), with_previous_action(env)
    first = env.reset(seed=0)
    if not isinstance(first, tuple) or len(first) != 2:
        raise UserError(f"{name}: reset must return an observation and an info, got {str(first)[:60]}")
    try:
        check_info(first[1])
    except MisfitError as error:
        raise UserError(f"{name}: reset: {error}") from None
    parts = describe_parts(env.observation_space, name, settings.symbols, partial(random_play, env, PROBE_STEPS))
    masks = settings.action_masks and mask_of(*first) is not None
    action = policy_action_space(env.action_space, name, joint=board_game and not masks)
    spec = EnvSpec.of_parts(name, parts, action, action_names=action_names(env, action))
    return spec.with_action_mask() if masks else spec


def block(settings: Gym, env_ids: range, seed: int, buffers: Buffers) -> "GymBlock":
    envs = [make(settings) for _ in env_ids]
    return GymBlock(envs, settings.id, settings, env_ids, seed, buffers)


def make(settings: Gym) -> gymnasium.Env:
    """Makes one environment with its wrappers. Errors name the setting to fix."""
    try:
        env = gymnasium.make(
            settings.id, max_episode_steps=settings.max_steps, disable_env_checker=True, **settings.kwargs
        )
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        hint = " (pip install 'engram-rl[tasks]')" if settings.id.startswith(EXTRA) else ""
        raise UserError(f"env.id: {settings.id} needs a package that is not installed: {error}{hint}") from error
    except gymnasium.error.Error as error:
        raise UserError(f"env.id: {error} {_nearest(settings.id)}") from error
    except TypeError as error:
        if concerns_arguments(error):
            raise UserError(f"env.kwargs: {error}") from error
        raise error.__cause__ or error from None  # Gymnasium wraps the environment's own error and hides its location
    if isinstance(env, TimeLimit) and isinstance(env.env, OrderEnforcing):
        env.env = env.env.env  # without OrderEnforcing's check at every step: a block always resets first
    return wrap(env, settings.wrappers)


class GymBlock:
    """Steps environments one after the other. Where an episode ends, the next one begins in the same step."""

    def __init__(
        self,
        envs: list[gymnasium.Env],
        name: str,
        settings: Gym | PythonEnv,
        env_ids: range,
        seed: int,
        buffers: Buffers,
    ) -> None:
        for env in envs:
            _make_contains_fast(env.action_space)
        self._envs, transforms = zip(*map(unwrap_rows, map(with_previous_action, envs)), strict=True)
        self._transforms = transforms[0]  # of observations, for all rows at once
        self._steps = [env.step for env in self._envs]
        self._space = space = self._envs[0].observation_space
        self._convert_actions, self._strict = action_converter(self._envs[0].action_space), settings.check == "strict"
        self._name, self._scale = name, settings.reward_scale
        self._writer = RowWriter(space, buffers.spec, buffers.observations)
        self._final_writer = RowWriter(space, buffers.spec, buffers.final_observations)
        self._buffers = buffers
        self._log = EpisodeLog(name, env_ids, seed, buffers)

    def reset(self, first_episode: int | None = None) -> None:
        if first_episode is not None:
            self._log.number_from(first_episode)
        buffers = self._buffers
        begun = [self._begin_episode(i) for i in range(len(self._envs))]
        self._write([observation for observation, _ in begun], [info for _, info in begun])
        buffers.rewards[:] = 0
        buffers.terminals[:] = False
        buffers.truncations[:] = False
        buffers.starts[:] = True
        buffers.alive[:] = True
        self._log.close_reset()

    def step(self) -> Ended | None:
        buffers, log = self._buffers, self._log
        actions = self._convert_actions(buffers.actions)
        log.record_actions()
        log.lengths += 1
        buffers.terminals[:] = False
        buffers.truncations[:] = False
        buffers.starts[:] = False
        observations: list[Any] = []
        rewards: list[Any] = []
        infos: list[Any] = []
        strict = self._strict
        try:
            for i, step in enumerate(self._steps):
                log.stepping = i
                observation, reward, terminated, truncated, info = step(actions[i])
                if terminated is not False or truncated is not False or strict or type(info) is not dict:
                    self._check_outcome(i, observation, terminated, truncated, info)
                if terminated or truncated:
                    self._end_episode(i, observation, terminated, info)
                    observation, info = self._begin_episode(i)
                observations.append(observation)
                rewards.append(reward)
                infos.append(info)
        except UserError:
            raise
        except Exception as error:
            error.add_note(log.describe(log.stepping))
            raise
        self._write(observations, infos)
        try:
            reward_array = as_rewards(rewards)
        except MisfitError as error:
            raise self._misfit(error.row, error) from None
        return log.close_step(reward_array, self._scale)

    def state(self) -> dict[str, np.ndarray] | None:
        registered = self._envs[0].spec
        return None if registered is not None and registered.nondeterministic else self._log.state()

    def restore(self, state: dict[str, np.ndarray]) -> bool:
        """Replays the running episodes from their seeds. After False the block must be reset."""
        self._log.open_replay(state)
        replayed = [self._replay(i) for i in range(len(self._envs))]
        complete = [each for each in replayed if each is not None]
        if len(complete) < len(replayed):
            return False
        self._write([observation for observation, _ in complete], [info for _, info in complete])
        self._buffers.alive[:] = True
        return self._log.reproduces(state)

    def scene(self) -> np.ndarray | None:
        return picture(self._envs[0].render()) if self._envs[0].render_mode == "rgb_array" else None

    def where(self) -> str:
        return self._log.describe(self._log.stepping)

    def close(self) -> None:
        close_all(self._envs)

    def _begin_episode(self, i: int) -> tuple[Any, Any]:
        """Returns the first observation of environment i's next episode, and its info."""
        return self._envs[i].reset(seed=self._log.begin(i))

    def _end_episode(self, i: int, observation: Any, terminated: bool, info: dict[str, Any]) -> None:
        if terminated:
            self._buffers.terminals[i] = True
        else:
            self._buffers.truncations[i] = True
            try:
                self._final_writer.write(i, observation)
            except MisfitError as error:
                raise self._misfit(i, error) from None
            self._transform(self._buffers.final_observations[i])
        self._buffers.starts[i] = True
        self._log.end(i, info)

    def _write(self, observations: list[Any], infos: list[Any]) -> None:
        try:
            if self._strict:
                self._check_observations(observations)
            with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is reported as such
                self._writer.write_all(observations, infos)
        except MisfitError as error:
            raise self._misfit(error.row, error) from None
        self._transform(self._buffers.observations)

    def _check_observations(self, observations: list[Any]) -> None:
        for row, observation in enumerate(observations):
            try:
                check_in_space(self._space, observation)
            except MisfitError as error:
                error.row = row
                raise

    def _check_outcome(self, i: int, observation: Any, terminated: Any, truncated: Any, info: Any) -> None:
        """Checks flags and info, and if checks are strict also the observation, which may be the last one."""
        try:
            check_flag("terminated", terminated)
            check_flag("truncated", truncated)
            check_info(info)
            if self._strict:
                self._check_observations([observation])
        except MisfitError as error:
            raise self._misfit(i, error) from None

    def _misfit(self, i: int, error: MisfitError) -> UserError:
        return UserError(f"{self._name}: {self._log.describe(i)}: {error}: fix or wrap the environment")

    def _transform(self, rows: np.ndarray) -> None:
        for transform in self._transforms:
            rows[...] = transform(rows)

    def _replay(self, i: int) -> tuple[Any, Any] | None:
        """Environment i's observation and info after its logged actions, or None if its episode ended before."""
        log = self._log
        observation, info = self._envs[i].reset(seed=log.seed(i))
        for action in self._convert_actions(log.actions(i)[:, 0]):
            observation, reward, terminated, truncated, info = self._steps[i](action)
            if terminated or truncated:
                return None
            log.returns[i] += reward
            log.lengths[i] += 1
        return observation, info


def _make_contains_fast(space: spaces.Space) -> None:
    """Makes `contains` fast for valid integers. CartPole calls it at every step, which took a third of the time."""
    if type(space) is spaces.Discrete:
        choices = range(int(space.start), int(space.start + space.n))
        space.contains = partial(_contains, space, choices)


def _contains(space: spaces.Discrete, choices: range, action: Any) -> bool:
    return (type(action) is int and action in choices) or spaces.Discrete.contains(space, action)


def _nearest(name: str) -> str:
    """The registered ids most like this one, ignoring case."""
    known = {known.lower(): known for known in gymnasium.registry}
    near = [known[match] for match in get_close_matches(name.partition(":")[2].lower() or name.lower(), known, n=3)]
    advice = "For an id that a package registers on import, write package:Id, e.g. ale_py:ALE/Pong-v5."
    return f"Nearest: {', '.join(near)}. {advice}" if near else advice
