"""Recall: a cue is shown, forgotten by the observations, and asked for later. Thousands of rows at once.

An episode is: the cue; `delay` blank steps, some with a marked cue that means nothing; the query, where naming the cue
gives the only reward. A channel for each cue, one that marks distractors and one that asks.
"""

import numpy as np
from gymnasium import spaces

from engram.env.block import Buffers, Ended
from engram.env.settings import Recall
from engram.env.spec import EnvSpec
from engram.env.splitmix import below, fold, uniform

_CUE, _DELAY, _CUT, _DISTRACT, _WHICH = range(5)  # what a random number is drawn for


def spec(settings: Recall) -> EnvSpec:
    # The query looks the same whatever the cue was, so without memory one of `cues` guesses is right. Both figures
    # count the episodes that are cut off before the query.
    asked = np.mean([(1.0 - settings.truncate) ** (delay + 1) for delay in _delays(settings)])
    return EnvSpec(
        name="recall",
        single_observation_space=spaces.Box(0.0, 1.0, (settings.cues + 2,), np.float32),
        single_action_space=spaces.Discrete(settings.cues),
        observation_kind="vector",
        action_names=tuple(f"cue_{cue}" for cue in range(settings.cues)),
        memoryless_ceiling=float(asked / settings.cues),
        mean_return_goal=float(asked),
    )


def block(settings: Recall, env_ids: range, seed: int, buffers: Buffers) -> "RecallBlock":
    return RecallBlock(settings, env_ids, seed, buffers)


class RecallBlock:
    def __init__(self, settings: Recall, env_ids: range, seed: int, buffers: Buffers):
        rows = len(env_ids)
        self._settings, self._buffers, self._delays = settings, buffers, _delays(settings)
        self._env_keys = fold(fold(np.zeros(rows, np.uint64), seed), np.arange(env_ids.start, env_ids.stop))
        self._episode = np.full(rows, -1, np.int64)
        self._step = np.zeros(rows, np.int64)
        # Of each row's present episode:
        self._keys = np.zeros(rows, np.uint64)
        self._cue = np.zeros(rows, np.int64)
        self._query = np.zeros(rows, np.int64)

    def reset(self) -> None:
        self._begin(np.arange(len(self._step)))
        buffers = self._buffers
        buffers.rewards[:], buffers.terminals[:], buffers.truncations[:] = 0.0, False, False
        buffers.starts[:], buffers.alive[:] = True, True
        self._observe(buffers.observations, slice(None))

    def step(self) -> Ended | None:
        buffers = self._buffers
        asked = self._step == self._query
        correct = asked & (buffers.actions == self._cue)
        self._step += 1
        cut = self._cut(asked)
        ended = asked | cut
        buffers.rewards[:], buffers.terminals[:], buffers.truncations[:], buffers.starts[:] = correct, asked, cut, ended
        rows = np.flatnonzero(ended)
        told = None
        if len(rows):
            answered = np.where(asked[rows], buffers.rewards[rows], np.float32(np.nan))
            lengths = self._step[rows].astype(np.int32)
            told = Ended(rows, buffers.rewards[rows], lengths, {"correct": answered})
            self._begin(rows)
        self._observe(buffers.observations, slice(None))
        return told

    def state(self) -> dict[str, np.ndarray]:
        return {"episode": self._episode.copy(), "step": self._step.copy()}

    def restore(self, state: dict[str, np.ndarray]) -> bool:
        self._episode[:], self._step[:] = state["episode"], state["step"]
        self._draw(np.arange(len(self._step)))
        self._buffers.starts[:], self._buffers.alive[:] = self._step == 0, True
        self._observe(self._buffers.observations, slice(None))
        return True

    def close(self) -> None:
        pass

    def _begin(self, rows: np.ndarray) -> None:
        self._episode[rows] += 1
        self._step[rows] = 0
        self._draw(rows)

    def _draw(self, rows: np.ndarray) -> None:
        """The cue and the delay of an episode follow from its number."""
        keys = fold(self._env_keys[rows], self._episode[rows])
        self._keys[rows] = keys
        self._cue[rows] = below(keys, _CUE, self._settings.cues)
        self._query[rows] = 1 + self._delays.start + below(keys, _DELAY, len(self._delays))

    def _cut(self, asked: np.ndarray) -> np.ndarray:
        """Which rows are cut off here; what they would have seen next goes to the final observations."""
        if self._settings.truncate == 0.0:
            return np.zeros_like(asked)
        cut = ~asked & (uniform(fold(self._keys, self._step), _CUT) < self._settings.truncate)
        rows = np.flatnonzero(cut)
        final = np.zeros((len(rows), self._settings.cues + 2), np.float32)
        self._observe(final, rows)
        self._buffers.final_observations[rows] = final
        return cut

    def _observe(self, out: np.ndarray, rows: np.ndarray | slice) -> None:
        """What these rows see at their present step."""
        step, query, cues = self._step[rows], self._query[rows], self._settings.cues
        out.fill(0.0)
        first = np.flatnonzero(step == 0)
        out[first, self._cue[rows][first]] = 1.0
        out[:, cues + 1] = step == query
        if self._settings.distractors > 0.0:
            keys = fold(self._keys[rows], step)
            blank = (step > 0) & (step < query)
            shown = np.flatnonzero(blank & (uniform(keys, _DISTRACT) < self._settings.distractors))
            out[shown, below(keys[shown], _WHICH, cues)] = 1.0
            out[shown, cues] = 1.0


def _delays(settings: Recall) -> range:
    """All the delays there are, each as likely."""
    return range(max(0, settings.delay - settings.delay_jitter), settings.delay + settings.delay_jitter + 1)
