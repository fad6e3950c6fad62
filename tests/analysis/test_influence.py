"""What of the past matters: counterfactuals against the agent played again without some steps."""

import numpy as np
import pytest
import torch

from engram.analysis.influence import influence
from engram.analysis.memory_step import MemoryStep
from engram.analysis.recording import record


def replayed(agent, recording, t: int, skipped: range) -> np.ndarray:
    """The action distribution at step t of an agent that has not seen these steps."""
    step = MemoryStep(agent)
    first = int(np.flatnonzero(recording.starts[: t + 1, 0])[-1])
    memory, found = torch.zeros(1, step.units), None
    for seen in range(first, t + 1):
        if seen not in skipped:
            found = step(recording.inputs(seen), memory, torch.tensor([seen == first]))
            memory = found.memory
    return found.distributions[0].numpy()


@pytest.mark.parametrize("budget", [10**6, 40])
def test_leaving_out_steps_is_playing_again_without_them(agent, recording, budget):
    found = influence(agent, recording, budget)
    assert (found.group == 1) == (budget > 100)
    checked = 0
    for first, end in zip(recording.episode_starts, [*recording.episode_starts[1:], recording.steps], strict=True):
        t = end - 1
        for g in range((t - first) // found.group):
            group = range(first + g * found.group, first + (g + 1) * found.group)
            for changes, skipped in ((found.skipped, group), (found.erased, range(first, group.stop))):
                other = replayed(agent, recording, t, skipped)
                expected = np.abs(other - recording.distributions[t, 0]).sum() / 2
                assert changes[t, 0, g] == pytest.approx(expected, abs=1e-6)
                checked += 1
    assert checked >= 4


def test_nothing_of_an_earlier_episode_matters(agent, recording):
    found = influence(agent, recording)
    for start in recording.episode_starts:
        assert not found.erased[start].any()
        assert found.erased[start + 1, 0, 0] > 0


def test_an_agent_without_memory_has_no_past(agent, recall):
    found = influence(agent, record(agent, recall, episodes=2, memory="off"))
    assert not found.skipped.any()
    assert not found.erased.any()
