"""The journal of a block: the running episode of each environment, its returns, and the actions that replay it."""

from itertools import islice
from typing import Any

import numpy as np

from engram.env.block import Buffers, Column, Ended, episode_seed
from engram.settings import UserError

LOGGED_STEPS = 10_000  # of one episode; a longer one is not replayed, and while it runs its block has no state
EPISODE_STATS = 16  # numbers kept from the info of one episode
OUTPUTS = ("observations", "final_observations", "rewards", "terminals", "truncations", "starts", "alive")


class Journal:
    """Counts and logs of some environments with the same number of agents (rows) each."""

    def __init__(self, name: str, env_ids: range, seed: int, buffers: Buffers) -> None:
        envs, rows = len(env_ids), len(buffers.rewards)
        agents = rows // envs
        self.episodes = np.full(envs, -1, np.int64)  # the number of the running one
        self.steps = np.zeros(envs, np.int64)  # since it began
        self.lengths = np.zeros(rows, np.int32)  # the same for each agent, who may come later or leave earlier
        self.returns = np.zeros(rows, np.float64)
        self._name, self._env_ids, self._seed, self._agents = name, env_ids, seed, agents
        self._buffers = buffers
        self._envs = np.arange(envs)
        self._log = np.zeros((envs, 64, agents, *buffers.actions.shape[1:]), buffers.actions.dtype)
        self._ended: list[tuple[int, dict[str, Any]]] = []

    def seed(self, env: int) -> int:
        """Seed of an environment's running episode."""
        return episode_seed(self._seed, self._env_ids[env], int(self.episodes[env]))

    def place(self, env: int) -> str:
        """Which environment it is and where in its episode, for messages about the step under way."""
        step = 0 if self._buffers.starts[env * self._agents] else int(self.steps[env])
        return f"environment {self._env_ids[env]}, at step {step} of the episode with seed {self.seed(env)}"

    def begin(self, env: int) -> int:
        """Turn to an environment's next episode, and give its seed. Its counts go on until the step is closed."""
        self.episodes[env] += 1
        return self.seed(env)

    def end(self, row: int, info: dict[str, Any]) -> None:
        """Note that an agent's episode ends with this step."""
        self._ended.append((row, info))

    def record(self) -> None:
        """Log the actions in the buffers: they are about to be taken."""
        room = self._log.shape[1]
        if room < LOGGED_STEPS and self.steps.max() == room:
            self._log = np.concatenate([self._log, np.zeros_like(self._log)], axis=1)[:, :LOGGED_STEPS]
        at = np.minimum(self.steps, self._log.shape[1] - 1)
        self._log[self._envs, at] = self._buffers.actions.reshape(len(self._envs), *self._log.shape[2:])
        self.steps += 1

    def logged(self, env: int) -> np.ndarray:
        """Actions of the running episode so far: [steps, agents, ...]."""
        return self._log[env, : self.steps[env]]

    def close_reset(self) -> None:
        """Forget unfinished episodes: every environment has begun another."""
        self._ended.clear()
        self.steps[:] = 0
        self.lengths[:] = 0
        self.returns[:] = 0
        self._check_observations(list(self._envs))

    def close_step(self, rewards: np.ndarray, scale: float, begun: list[int]) -> Ended | None:
        """Book the rewards [R] of a step, before scaling, and the episodes that ended and that began with it."""
        if not np.isfinite(rewards).all():
            self._refuse("reward", ~np.isfinite(rewards), begun)
        self._check_observations(begun)
        self.returns += rewards
        np.multiply(rewards, scale, out=self._buffers.rewards, casting="same_kind")
        if begun:
            self.steps[begun] = 0
        if not self._ended:
            return None
        rows = [row for row, _ in self._ended]
        stats = _stats([info for _, info in self._ended])
        ended = Ended(rows, self.returns[rows].tolist(), self.lengths[rows].tolist(), stats)
        self.returns[rows] = 0
        self.lengths[rows] = 0
        self._ended.clear()
        return ended

    def state(self) -> dict[str, np.ndarray] | None:
        """The journal and all that the buffers hold, or None if an episode has outgrown the log."""
        longest = int(self.steps.max())
        if longest > LOGGED_STEPS:
            return None
        arrays = {name: self._per_env(getattr(self._buffers, name)) for name in OUTPUTS}
        arrays |= {"episodes": self.episodes, "steps": self.steps}
        arrays |= {"lengths": self._per_env(self.lengths), "returns": self._per_env(self.returns)}
        log = self._log[:, :longest].copy()
        log[np.arange(longest) >= self.steps[:, None]] = 0  # of episodes before: equal states are to be equal
        return {name: array.copy() for name, array in arrays.items()} | {"log": log}

    def open_replay(self, state: dict[str, np.ndarray]) -> None:
        """Take over a state's episodes and actions; lengths and returns must come out of the replay."""
        self._ended.clear()
        self.episodes[:] = state["episodes"]
        self.steps[:] = state["steps"]
        self.lengths[:] = 0
        self.returns[:] = 0
        log = state["log"]
        self._log = np.zeros((len(self._envs), max(log.shape[1], 64), *self._log.shape[2:]), self._log.dtype)
        self._log[:, : log.shape[1]] = log

    def close_replay(self, state: dict[str, np.ndarray]) -> bool:
        """Whether the replay gave what was saved; if so, the buffers become what they were."""
        replayed = {name: self._per_env(getattr(self._buffers, name)) for name in OUTPUTS}
        replayed |= {"lengths": self._per_env(self.lengths), "returns": self._per_env(self.returns)}
        if not all(
            np.array_equal(replayed[name], state[name]) for name in ("observations", "alive", "lengths", "returns")
        ):
            return False
        for name in OUTPUTS:
            replayed[name][...] = state[name]
        return True

    def _per_env(self, rows: np.ndarray) -> np.ndarray:
        return rows.reshape(len(self._envs), self._agents, *rows.shape[1:])

    def _check_observations(self, begun: list[int]) -> None:
        """Stop at the first NaN or infinity, while it is known where it came from."""
        observations, finals = self._buffers.observations, self._buffers.final_observations
        if observations.dtype.kind != "f":
            return
        if not np.isfinite(observations).all():
            self._refuse("observation", ~np.isfinite(observations).all(axis=1), begun)
        if self._ended and self._buffers.truncations.any():
            bad = self._buffers.truncations & ~np.isfinite(finals).all(axis=1)
            if bad.any():
                self._refuse("last observation", bad, begun)

    def _refuse(self, what: str, bad: np.ndarray, begun: list[int]) -> None:
        row = int(np.argmax(bad))
        env = row // self._agents
        if what == "observation" and env in begun:
            what, step = "first observation", 0
        else:
            self.episodes[env] -= env in begun
            step = int(self.steps[env])
        agent = f", agent {row % self._agents}" if self._agents > 1 else ""
        cause = "fix or wrap the environment"
        if step and not np.isfinite(self._buffers.actions[row]).all():
            cause = "the action before it was not finite either, so look for the cause in the policy"
        raise UserError(
            f"{self._name}: the {what} of environment {self._env_ids[env]}{agent} is NaN or infinite "
            f"at step {step} of the episode with seed {self.seed(env)}: {cause}"
        )


def _stats(infos: list[dict[str, Any]]) -> dict[str, Column]:
    """What the environments say in numbers of the episodes that ended, by name; None where one says nothing."""
    if not any(infos):
        return {}
    found = [_numbers(info) for info in infos]
    names = {name: None for numbers in found for name in numbers}
    return {name: [numbers.get(name) for numbers in found] for name in names}


def _numbers(info: dict[str, Any]) -> dict[str, float]:
    scalars = (bool, int, float, np.bool_, np.integer, np.floating)
    found = ((str(name), float(value)) for name, value in info.items() if isinstance(value, scalars))
    return dict(islice(found, EPISODE_STATS))
