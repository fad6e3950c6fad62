"""Interventions: the return of an agent whose memory is erased, frozen or exchanged while it plays."""

# R rows, N agent-episodes, U numbers of memory per row

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from engram.analysis.recording import Change, Recording
from engram.training.estimate import Estimate, estimate


def interventions(recording: Recording, swap_step: int, seed: int = 0) -> dict[str, Callable[[], Change]]:
    """What is done to memory before each step, by name."""
    bank = recording.memory[_at_step(recording, swap_step - 1)]
    swapped = partial(Swapped, torch.from_numpy(bank), swap_step, seed)
    return {"erased": lambda: erased, "frozen": Frozen, "swapped": swapped}


def erased(memory: Tensor, episode_step: Tensor) -> Tensor:
    """Memory is empty at every step."""
    return torch.zeros_like(memory)


class Frozen:
    """Memory stays what it was after the first observation of the episode."""

    def __init__(self) -> None:
        self._first: Tensor | None = None

    def __call__(self, memory: Tensor, episode_step: Tensor) -> Tensor:
        if self._first is None:
            self._first = torch.zeros_like(memory)
        first = (episode_step == 1).unsqueeze(1)
        self._first = torch.where(first, memory, self._first)
        return self._first


class Swapped:
    """At one step of each episode, memory is replaced by that of another episode at the same step."""

    def __init__(self, bank: Tensor, step: int, seed: int) -> None:
        self._bank, self._step = bank, step
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, memory: Tensor, episode_step: Tensor) -> Tensor:
        others = self._bank[torch.randint(len(self._bank), (len(memory),), generator=self._generator)]
        return torch.where((episode_step == self._step).unsqueeze(1), others, memory)


def returns(recording: Recording, agents: int, episodes_per_env: int) -> Estimate | None:
    """The mean return over the first episodes of each environment; agents are averaged within an episode."""
    ended = recording.episodes
    number = np.zeros(len(ended.rows), int)  # of the episode of its row
    for row in np.unique(ended.rows):
        own = np.flatnonzero(ended.rows == row)
        number[own] = np.arange(len(own))
    used = number < episodes_per_env
    episode = (ended.rows // agents) * episodes_per_env + number
    _, index = np.unique(episode[used], return_inverse=True)
    if not len(index):
        return None
    return estimate(np.bincount(index, ended.returns[used]) / np.bincount(index))


def _at_step(recording: Recording, episode_step: int) -> np.ndarray:
    """Where [T, R] an episode is at this step."""
    since = np.zeros(recording.starts.shape[1], int)
    found = []
    for starts in recording.starts:
        since = np.where(starts, 0, since + 1)
        found.append(since == episode_step)
    return np.stack(found) & recording.alive
