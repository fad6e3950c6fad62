"""Recall: a cue is shown once and queried later. Steps thousands of rows at once.

An episode is the cue, then `delay` blank steps (some with a marked distractor cue), then the query, where naming the
cue gives the only reward. Observations have one channel per cue, one that marks distractors and one for the query.
"""

import numpy as np
from gymnasium import spaces

from engram.env.block import Buffers, Ended
from engram.env.settings import Recall
from engram.env.spec import EnvSpec
from engram.env.splitmix import below, fold, uniform

_CUE, _DELAY, _TRUNCATE, _DISTRACT, _DISTRACTOR = range(5)  # purposes of random draws


def spec(settings: Recall) -> EnvSpec:
    # The query does not depend on the cue, so without memory one of `cues` guesses is right. Both figures include
    # episodes that are truncated before the query.
    queried = np.mean([(1.0 - settings.truncate) ** (delay + 1) for delay in _delays(settings)])
    return EnvSpec(
        name="recall",
        single_observation_space=spaces.Box(0.0, 1.0, (settings.cues + 2,), np.float32),
        single_action_space=spaces.Discrete(settings.cues),
        observation_kind="vector",
        action_names=tuple(f"cue_{cue}" for cue in range(settings.cues)),
        memoryless_ceiling=float(queried / settings.cues),
        mean_return_goal=float(queried),
    )


def block(settings: Recall, env_ids: range, seed: int, buffers: Buffers) -> "RecallBlock":
    return RecallBlock(settings, env_ids, seed, buffers)


class RecallBlock:
    """Steps all rows with array operations. Every random draw depends on seed, environment, episode and step alone."""

    def __init__(self, settings: Recall, env_ids: range, seed: int, buffers: Buffers):
        rows = len(env_ids)
        self._settings, self._buffers, self._delays = settings, buffers, _delays(settings)
        self._env_keys = fold(fold(np.zeros(rows, np.uint64), seed), np.arange(env_ids.start, env_ids.stop))
        self._episode = np.full(rows, -1, np.int64)
        self._step = np.zeros(rows, np.int64)
        # Of each row's running episode:
        self._keys = np.zeros(rows, np.uint64)
        self._cue = np.zeros(rows, np.int64)
        self._query = np.zeros(rows, np.int64)

    def reset(self, first_episode: int | None = None) -> None:
        if first_episode is not None:
            self._episode[:] = first_episode - 1
        self._begin(np.arange(len(self._step)))
        buffers = self._buffers
        buffers.rewards[:], buffers.terminals[:], buffers.truncations[:] = 0.0, False, False
        buffers.starts[:], buffers.alive[:] = True, True
        self._observe(buffers.observations, slice(None))

    def step(self) -> Ended | None:
        buffers = self._buffers
        queried = self._step == self._query
        self._step += 1
        truncated = self._truncate(queried)
        buffers.rewards[:] = queried & (buffers.actions == self._cue)
        buffers.terminals[:], buffers.truncations[:], buffers.starts[:] = queried, truncated, queried | truncated
        rows = np.flatnonzero(buffers.starts)
        ended = None
        if len(rows):
            correct = np.where(queried[rows], buffers.rewards[rows], np.float32(np.nan))
            lengths = self._step[rows].astype(np.int32)
            ended = Ended(rows, buffers.rewards[rows], lengths, {"correct": correct})
            self._begin(rows)
        self._observe(buffers.observations, slice(None))
        return ended

    def state(self) -> dict[str, np.ndarray]:
        return {"episode": self._episode.copy(), "step": self._step.copy()}

    def restore(self, state: dict[str, np.ndarray]) -> bool:
        self._episode[:], self._step[:] = state["episode"], state["step"]
        self._draw(np.arange(len(self._step)))
        self._buffers.starts[:], self._buffers.alive[:] = self._step == 0, True
        self._observe(self._buffers.observations, slice(None))
        return True

    def scene(self) -> None:
        return None  # an observation shows all there is

    def where(self) -> None:
        return None

    def close(self) -> None:
        pass

    def _begin(self, rows: np.ndarray) -> None:
        self._episode[rows] += 1
        self._step[rows] = 0
        self._draw(rows)

    def _draw(self, rows: np.ndarray) -> None:
        """Draws the cue and the delay of these rows' episodes."""
        keys = fold(self._env_keys[rows], self._episode[rows])
        self._keys[rows] = keys
        self._cue[rows] = below(keys, _CUE, self._settings.cues)
        self._query[rows] = 1 + self._delays.start + below(keys, _DELAY, len(self._delays))

    def _truncate(self, queried: np.ndarray) -> np.ndarray:
        """Draws which rows are truncated and writes their final observations."""
        if self._settings.truncate == 0.0:
            return np.zeros_like(queried)
        truncated = ~queried & (uniform(fold(self._keys, self._step), _TRUNCATE) < self._settings.truncate)
        rows = np.flatnonzero(truncated)
        final = np.zeros((len(rows), self._settings.cues + 2), np.float32)
        self._observe(final, rows)
        self._buffers.final_observations[rows] = final
        return truncated

    def _observe(self, out: np.ndarray, rows: np.ndarray | slice) -> None:
        """Writes the observations of these rows at their current step."""
        step, query, cues = self._step[rows], self._query[rows], self._settings.cues
        out.fill(0.0)
        first = np.flatnonzero(step == 0)
        out[first, self._cue[rows][first]] = 1.0
        out[:, cues + 1] = step == query
        if self._settings.distractors > 0.0:
            keys = fold(self._keys[rows], step)
            blank = (step > 0) & (step < query)
            shown = np.flatnonzero(blank & (uniform(keys, _DISTRACT) < self._settings.distractors))
            out[shown, below(keys[shown], _DISTRACTOR, cues)] = 1.0
            out[shown, cues] = 1.0


def _delays(settings: Recall) -> range:
    """All possible delays, equally likely."""
    return range(max(0, settings.delay - settings.delay_jitter), settings.delay + settings.delay_jitter + 1)
