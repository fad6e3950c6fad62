"""The journal of a block: the running episode of each environment, its returns, and the actions that replay it."""

from typing import Any

import numpy as np

from engram.env.block import Buffers, Episodes, episode_seed
from engram.settings import UserError

LOGGED_STEPS = 10_000  # of one episode; a longer one cannot be replayed, and its block has no state
EPISODE_STATS = 16  # numbers kept from the info of one episode
OUTPUTS = ("observations", "final_observations", "rewards", "terminals", "truncations", "starts", "alive")


class Journal:
    """Counts and logs for N environments of some agents each; rows are theirs, in order."""

    def __init__(self, name: str, env_ids: range, seed: int, buffers: Buffers) -> None:
        envs, rows = len(env_ids), len(buffers.rewards)
        self.name = name
        self.env_ids = env_ids
        self.agents = rows // envs
        self.episodes = np.full(envs, -1, np.int64)  # number of the running one
        self.steps = np.zeros(envs, np.int64)  # since it began
        self.lengths = np.zeros(rows, np.int32)  # steps of each agent's own episode
        self.returns = np.zeros(rows, np.float64)
        self._seed = seed
        self._buffers = buffers
        self._envs = np.arange(envs)
        self._log = np.zeros((envs, 64, self.agents, *buffers.actions.shape[1:]), buffers.actions.dtype)
        self._ended: list[tuple[int, dict[str, Any]]] = []
        self._checked = [buffers.observations] if buffers.observations.dtype.kind == "f" else []

    def begin(self, env: int) -> int:
        """Go on to an environment's next episode; its seed."""
        self.episodes[env] += 1
        return self.seed(env)

    def seed(self, env: int) -> int:
        return episode_seed(self._seed, self.env_ids[env], int(self.episodes[env]))

    def clear(self) -> None:
        """Forget unfinished episodes: all environments were reset."""
        self.steps[:] = 0
        self.lengths[:] = 0
        self.returns[:] = 0

    def record(self) -> None:
        """Log the actions that are about to be taken."""
        if self.steps.max() == self._log.shape[1] < LOGGED_STEPS:
            self._log = np.concatenate([self._log, np.zeros_like(self._log)], axis=1)[:, :LOGGED_STEPS]
        at = np.minimum(self.steps, self._log.shape[1] - 1)
        self._log[self._envs, at] = self._buffers.actions.reshape(-1, *self._log.shape[2:])
        self.steps += 1

    def logged(self, env: int) -> np.ndarray:
        """Actions of the running episode, `[steps, agents, ...]`."""
        return self._log[env, : self.steps[env]]

    def end(self, row: int, info: dict[str, Any]) -> None:
        """Note that an agent's episode ended in this step."""
        self._ended.append((row, info))

    def close_step(self, rewards: np.ndarray, scale: float, restarted: list[int]) -> Episodes:
        """Book a step's rewards (unscaled, float64) and give back the episodes that ended in it."""
        self.returns += rewards
        np.multiply(rewards, scale, out=self._buffers.rewards, casting="same_kind")
        self._check(rewards, restarted)
        self.steps[restarted] = 0
        if not self._ended:
            return Episodes.none()
        ended, self._ended = self._ended, []
        rows = np.array([row for row, _ in ended], np.int64)
        episodes = Episodes(rows, self.returns[rows].astype(np.float32), self.lengths[rows], _stats(ended))
        self.returns[rows] = 0
        self.lengths[rows] = 0
        return episodes

    def state(self) -> dict[str, np.ndarray] | None:
        """The whole journal and what the buffers hold, one entry per environment first."""
        longest = int(self.steps.max())
        if longest > LOGGED_STEPS:
            return None
        outputs = {name: self._per_env(getattr(self._buffers, name)) for name in OUTPUTS}
        counts = {"episodes": self.episodes, "steps": self.steps}
        totals = {"lengths": self._per_env(self.lengths), "returns": self._per_env(self.returns)}
        parts = outputs | counts | totals | {"log": self._log[:, :longest]}
        return {name: array.copy() for name, array in parts.items()}

    def load(self, state: dict[str, np.ndarray]) -> None:
        """Take over a state's counts and log, for a replay that `matches` then judges."""
        self._ended.clear()
        self.episodes[:] = state["episodes"]
        self.steps[:] = state["steps"]
        self.lengths[:] = state["lengths"].ravel()
        self.returns[:] = state["returns"].ravel()
        room = max(state["log"].shape[1], 1)
        self._log = np.zeros((len(self._envs), room, *self._log.shape[2:]), self._log.dtype)
        self._log[:, : state["log"].shape[1]] = state["log"]

    def matches(self, state: dict[str, np.ndarray], replayed_returns: np.ndarray) -> bool:
        """Whether a replay came out as saved; if so the buffers become what they were."""
        same = all(
            np.array_equal(getattr(self._buffers, name), state[name].reshape(getattr(self._buffers, name).shape))
            for name in ("observations", "alive")
        )
        if not same or not np.array_equal(replayed_returns, self.returns):
            return False
        for name in OUTPUTS:
            array = getattr(self._buffers, name)
            array[:] = state[name].reshape(array.shape)
        return True

    def _per_env(self, rows: np.ndarray) -> np.ndarray:
        return rows.reshape(len(self._envs), self.agents, *rows.shape[1:])

    def _check(self, rewards: np.ndarray, restarted: list[int]) -> None:
        """Stop at the first NaN or infinity, where its origin is still known."""
