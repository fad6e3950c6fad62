"""An environment that counts and fails on request: observations are (environment, agent, episode, step)."""

import os
import time
from typing import Literal

import numpy as np
from gymnasium import spaces

from engram.env.block import Buffers, Ended
from engram.env.spec import EnvSpec
from engram.settings import Settings, UserError


class Trouble(Settings):
    kind: Literal["trouble"] = "trouble"
    agents: int = 1
    length: int = 3  # environment i's episodes last length + i steps and are cut off there if i is odd
    fault: Literal["none", "raise", "exit", "hang", "refuse", "slow"] = "none"
    at: Literal["build", "reset", "step"] = "step"
    env: int = 0  # the environment that goes wrong
    after: int = 2  # steps of it
    exact: bool = True


def spec(settings: Trouble) -> EnvSpec:
    observation = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    return EnvSpec("trouble", observation, spaces.Discrete(100), "vector", agents=settings.agents)


def block(settings: Trouble, env_ids: range, seed: int, buffers: Buffers) -> "TroubleBlock":
    return TroubleBlock(settings, env_ids, buffers)


class TroubleBlock:
    def __init__(self, settings: Trouble, env_ids: range, buffers: Buffers):
        self.settings, self.ids, self.buffers = settings, np.array(env_ids), buffers
        self.episode, self.step_in_episode, self.steps = (np.full(len(env_ids), start) for start in (-1, 0, 0))
        self.log = np.zeros((len(env_ids), 64, settings.agents), np.uint8)  # the actions of the episode
        self._perhaps_fail("build")

    def reset(self, first_episode: int | None = None) -> None:
        if first_episode is not None:
            self.episode[:] = first_episode - 1
        self._perhaps_fail("reset")
        self.episode += 1
        self.step_in_episode[:] = 0
        for name in ("rewards", "terminals", "truncations"):
            getattr(self.buffers, name)[:] = 0
        self.buffers.starts[:] = self.buffers.alive[:] = True
        self.buffers.observations[:] = self._look()

    def step(self) -> Ended:
        self.steps += 1
        self._perhaps_fail("step")
        agents, buffers = self.settings.agents, self.buffers
        self.log[np.arange(len(self.ids)), self.step_in_episode % 64] = buffers.actions.reshape(-1, agents)
        self.step_in_episode += 1
        ended = self.step_in_episode == self.settings.length + self.ids
        odd = self.ids % 2 == 1
        buffers.rewards[:] = buffers.actions
        buffers.terminals[:], buffers.truncations[:] = np.repeat(ended & ~odd, agents), np.repeat(ended & odd, agents)
        buffers.starts[:] = np.repeat(ended, agents)
        buffers.final_observations[buffers.truncations] = self._look()[buffers.truncations]
        rows = np.flatnonzero(buffers.starts)
        returns = (self.log.sum(1).reshape(-1))[rows].astype(np.float32)
        lengths = np.repeat(self.step_in_episode, agents)[rows].astype(np.int32)
        episodes = Ended(rows, returns, lengths, {"odd": np.repeat(odd, agents)[rows].astype(np.float32)})
        self.episode[ended] += 1
        self.step_in_episode[ended] = 0
        self.log[ended] = 0
        buffers.observations[:] = self._look()
        return episodes

    def state(self) -> dict[str, np.ndarray] | None:
        width = int(self.step_in_episode.max())  # differs between blocks
        numbers = {"episode": self.episode.copy(), "step": self.step_in_episode.copy()}
        return numbers | {"log": self.log[:, :width].copy()} if self.settings.exact else None

    def restore(self, state: dict[str, np.ndarray]) -> bool:
        self.episode[:], self.step_in_episode[:] = state["episode"], state["step"]
        self.log[:] = 0
        for log, saved, length in zip(self.log, state["log"], state["step"], strict=True):
            log[:length] = saved[:length]
        self.buffers.observations[:] = self._look()
        self.buffers.alive[:] = True
        self.buffers.rewards[:] = -1  # as a replay of the episode would leave something there
        return True

    def where(self) -> None:
        return None

    def close(self) -> None:
        pass

    def _look(self) -> np.ndarray:
        agents = self.settings.agents
        who = np.tile(np.arange(agents), len(self.ids))
        return np.stack([np.repeat(x, agents) for x in (self.ids, self.episode, self.step_in_episode)] + [who], 1)[
            :, [0, 3, 1, 2]
        ]

    def _perhaps_fail(self, at: str) -> None:
        mine = self.ids == self.settings.env
        if at != self.settings.at or not mine.any() or (at == "step" and self.steps[mine][0] <= self.settings.after):
            return
        if self.settings.fault == "raise":
            raise ArithmeticError("the wheel came off")
        if self.settings.fault == "refuse":
            raise UserError("trouble.env: no such place")
        if self.settings.fault == "exit":
            os._exit(3)
        if self.settings.fault in ("hang", "slow"):
            time.sleep(600 if self.settings.fault == "hang" else 0.3)
