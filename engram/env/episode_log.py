"""The episode log of a block: running returns, lengths and episode numbers, and the actions that replay an episode."""

import math
from itertools import islice
from typing import Any

import numpy as np

from engram.env.block import Buffers, Column, Ended
from engram.env.errors import NotFiniteError
from engram.env.splitmix import episode_seed

MAX_LOGGED_STEPS = 10_000  # per episode; while a longer episode runs, its block cannot be saved
FLOAT32_MAX = float(np.finfo(np.float32).max)
MAX_REWARD = 1e15  # the square of a return must fit into float32
MAX_STATS = 16  # numbers kept from an episode's last info


class EpisodeLog:
    """Follows the running episode of each environment. All environments have the same number of agents (rows)."""

    def __init__(
        self, name: str, env_ids: range, seed: int, buffers: Buffers, return_dtype: type[np.floating] = np.float64
    ) -> None:
        envs, rows = len(env_ids), len(buffers.rewards)
        self.episodes = [-1] * envs  # number of the running episode
        self.stepping = 0  # the environment that is being stepped
        self.lengths = np.zeros(rows, np.int32)  # per agent: agents may join late or leave early
        self.returns = np.zeros(rows, return_dtype)
        self._name, self._env_ids, self._seed, self._buffers = name, env_ids, seed, buffers
        self._agents = rows // envs
        self._floats = _floats(buffers.parts(buffers.observations))
        self._final_floats = _floats(buffers.parts(buffers.final_observations))
        self._tick = 0  # steps of the block
        self._first_ticks = [0] * envs  # tick at which the running episode began
        # The block's last actions, a ring buffer [ticks, envs, agents, ...]: tick t is at t % len(self._actions).
        self._env_actions = self.per_env(buffers.actions)
        self._actions = np.zeros((64, *self._env_actions.shape), buffers.actions.dtype)
        self._full_at = len(self._actions)  # tick at which the ring buffer may overwrite a running episode
        self._ended: list[tuple[int, dict[str, Any]]] = []  # row and last info of episodes that end with this step

    def per_env(self, rows: np.ndarray) -> np.ndarray:
        """A view of a per-row array as [environments, agents, ...]."""
        return rows.reshape(len(self._env_ids), self._agents, *rows.shape[1:])

    def seed(self, env: int) -> int:
        """The seed of an environment's running episode."""
        return episode_seed(self._seed, self._env_ids[env], self.episodes[env])

    def begin(self, env: int) -> int:
        """Starts an environment's next episode and returns its seed."""
        self.episodes[env] += 1
        self._first_ticks[env] = self._tick
        return self.seed(env)

    def number_from(self, episode: int) -> None:
        """Gives the episodes that begin next this number."""
        self.episodes = [episode - 1] * len(self.episodes)

    def describe(self, env: int) -> str:
        """Which environment this is and where in its episode, for error messages."""
        return f"environment {self._env_ids[env]}, at step {self.steps(env)} of the episode with seed {self.seed(env)}"

    def clear(self) -> None:
        """Discards lengths and returns of unfinished episodes."""
        self._ended.clear()
        self.lengths[:] = 0
        self.returns[:] = 0

    def record_actions(self) -> None:
        """Logs the actions in the buffers, which the environments are about to take."""
        if self._tick == self._full_at:
            self._grow()
        self._actions[self._tick % len(self._actions)] = self._env_actions
        self._tick += 1

    def steps(self, env: int) -> int:
        """Steps of an environment's running episode."""
        return self._tick - self._first_ticks[env]

    def actions(self, env: int) -> np.ndarray:
        """The actions of an environment's running episode: [steps, agents, ...]."""
        return self._actions[np.arange(self._first_ticks[env], self._tick) % len(self._actions), env]

    def end(self, row: int, info: dict[str, Any]) -> None:
        """Notes that an agent's episode ends with this step. The numbers in `info` become its stats."""
        self._ended.append((row, info))

    def close_reset(self) -> None:
        """Ends a reset: every environment has begun a new episode and shows its first observation."""
        self.clear()
        self._check_observations()

    def close_step(self, rewards: np.ndarray, scale: float) -> Ended | None:
        """Ends a step: checks the observations, adds up the rewards [R] and writes them, scaled, to the buffers."""
        scaled = self._buffers.rewards
        with np.errstate(over="ignore", invalid="ignore"):
            np.multiply(rewards, scale, out=scaled, casting="same_kind")
        if not np.abs(scaled).max(initial=0.0) <= MAX_REWARD:  # also for NaN
            row = int(np.argmax(~(np.abs(scaled) <= MAX_REWARD)))
            self._raise_not_finite("reward", row, rewards[row])
        self._check_observations()
        self.returns += rewards
        if not self._ended:
            return None
        rows, numbers = [row for row, _ in self._ended], [_numbers(info) for _, info in self._ended]
        self._check_stats(rows, numbers)
        self._ended.clear()
        return self.finish(rows, _columns(numbers))

    def finish(self, rows: list[int], stats: dict[str, Column]) -> Ended:
        """Reports the episodes of these rows as finished."""
        ended = Ended(rows, self.returns[rows].tolist(), self.lengths[rows].tolist(), stats)
        self.returns[rows] = 0
        self.lengths[rows] = 0
        return ended

    def state(self) -> dict[str, np.ndarray] | None:
        """All that a replay needs, one entry per environment; None if an episode has outgrown the log."""
        steps = self._tick - np.array(self._first_ticks)
        longest = int(steps.max())
        if longest > MAX_LOGGED_STEPS:
            return None
        actions = np.zeros((len(steps), longest, *self._actions.shape[2:]), self._actions.dtype)
        for env, count in enumerate(steps.tolist()):
            actions[env, :count] = self.actions(env)
        return {
            "episodes": np.array(self.episodes),
            "steps": steps,
            "lengths": self.per_env(self.lengths).copy(),
            "returns": self.per_env(self.returns).copy(),
            "actions": actions,
        }

    def open_replay(self, state: dict[str, np.ndarray]) -> None:
        """Takes episode numbers and actions from a state. The replay must reproduce lengths and returns."""
        self.clear()
        steps, actions = state["steps"], state["actions"]
        self.episodes = state["episodes"].tolist()
        self._tick = self._full_at = int(steps.max())
        self._first_ticks = (self._tick - steps).tolist()
        self._actions = np.zeros((max(self._tick, 64), *self._actions.shape[1:]), self._actions.dtype)
        for env, (first, count) in enumerate(zip(self._first_ticks, steps.tolist(), strict=True)):
            self._actions[first : self._tick, env] = actions[env, :count]

    def reproduces(self, state: dict[str, np.ndarray]) -> bool:
        """Whether the replay gave the lengths and returns of this state."""
        lengths, returns = self.per_env(self.lengths), self.per_env(self.returns)
        return np.array_equal(lengths, state["lengths"]) and np.array_equal(returns, state["returns"])

    def _grow(self) -> None:
        """Doubles the ring buffer, up to MAX_LOGGED_STEPS, if a running episode fills it."""
        capacity, oldest = len(self._actions), min(self._first_ticks)
        if oldest == self._tick - capacity and capacity < MAX_LOGGED_STEPS:
            ticks = np.arange(oldest, self._tick)
            larger = np.zeros((min(2 * capacity, MAX_LOGGED_STEPS), *self._actions.shape[1:]), self._actions.dtype)
            larger[ticks % len(larger)] = self._actions[ticks % capacity]
            self._actions = larger
        self._full_at = max(oldest + len(self._actions), self._tick + 1)

    def _check_observations(self) -> None:
        """Raises at the first NaN or infinity, where its origin is still known."""
        for name, values in self._floats.items():
            if not np.isfinite(values).all():
                row = int(np.argmax(~_finite_rows(values)))
                self._raise_not_finite(_with_part("observation", name), row, _first_bad(values[row]))
        if self._floats and self._ended and self._buffers.truncations.any():
            for name, values in self._final_floats.items():
                bad = self._buffers.truncations & ~_finite_rows(values)
                if bad.any():
                    row = int(np.argmax(bad))
                    self._raise_not_finite(_with_part("last observation", name), row, _first_bad(values[row]))

    def _check_stats(self, rows: list[int], numbers: list[dict[str, float]]) -> None:
        """Infinite statistics are an error; NaN means that an episode lacks one."""
        for row, found in zip(rows, numbers, strict=True):
            for name, value in found.items():
                if abs(value) > FLOAT32_MAX:
                    self._raise_not_finite(f"info {name!r}", row, value)

    def _raise_not_finite(self, what: str, row: int, value: float) -> None:
        env, step = row // self._agents, int(self.lengths[row])
        episode = self.episodes[env]
        if self.steps(env) == 0:  # the next episode has begun already
            if what.startswith("observation"):
                what, step = f"first {what}", 0
            else:
                episode -= 1
        agent = f", agent {row % self._agents}" if self._agents > 1 else ""
        cause = "fix or wrap the environment"
        if step and not np.isfinite(self._buffers.actions[row]).all():
            cause = "the previous action was not finite either, so look for the cause in the policy"
        problem, largest = "NaN or infinite", ""
        if np.isfinite(value):
            problem = "too large"
            largest = f", at most {MAX_REWARD:g}" if what == "reward" else ", too large for float32"
            cause = "scale rewards with env.reward_scale, or fix the environment" if what == "reward" else cause
        raise NotFiniteError(
            f"{self._name}: the {what} of environment {self._env_ids[env]}{agent} is {problem} at step {step} "
            f"of the episode with seed {episode_seed(self._seed, self._env_ids[env], episode)} "
            f"({value:g}{largest}): {cause}"
        )


def _floats(parts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array for name, array in parts.items() if array.dtype.kind == "f"}


def _finite_rows(values: np.ndarray) -> np.ndarray:
    return np.isfinite(values).reshape(len(values), -1).all(axis=1)


def _with_part(what: str, part: str) -> str:
    return f"{what} {part!r}" if part else what


def _first_bad(values: np.ndarray) -> float:
    return float(values[~np.isfinite(values)].flat[0])


def _columns(found: list[dict[str, float]]) -> dict[str, Column]:
    """The episodes' statistics by name; None where an episode lacks one."""
    names = {name: None for numbers in found for name in numbers}
    return {name: [numbers.get(name) for numbers in found] for name in names}


def _numbers(info: dict[str, Any]) -> dict[str, float]:
    scalars = (bool, int, float, np.bool_, np.integer, np.floating)
    found = ((str(name), _as_float(value)) for name, value in info.items() if isinstance(value, scalars))
    return dict(islice(found, MAX_STATS))


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return math.inf
