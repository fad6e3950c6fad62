"""Recordings of whole episodes."""

import numpy as np
import pytest
import torch

from engram.agent.metta_agent import MettaAgent
from engram.agent.policies.fast import Fast
from engram.analysis import recording as recording_module
from engram.analysis.influence import influence
from engram.analysis.memory_step import MemoryStep, unit_names
from engram.analysis.recording import MIN_STEPS, record
from engram.env.registry import make_spec
from engram.env.settings import Gym, Recall, TMaze
from engram.training.evaluate import evaluate


def test_the_episodes_are_those_of_an_evaluation_with_the_same_seed(agent, recording, recall):
    found = evaluate(agent, recall, episodes=3, seed=4, num_envs=1)
    assert recording.episodes.returns.mean() == found.returns.mean
    assert recording.episodes.lengths.mean() == found.length.mean
    assert recording.steps == recording.episodes.lengths.sum()


def test_memory_is_what_the_observations_up_to_then_leave(agent, recording):
    step = MemoryStep(agent)
    memory = torch.zeros(1, step.units)
    for t in range(recording.steps):
        starts = torch.from_numpy(recording.starts[t])
        memory = step(recording.inputs(t), memory, starts).memory
        torch.testing.assert_close(memory.numpy(), recording.memory[t])


def test_short_episodes_are_followed_by_others(agent):
    found = record(agent, Recall(cues=3, delay=1), seed=1)
    assert found.steps >= MIN_STEPS
    assert len(found.episode_starts) == len(found.episodes) > 10
    assert found.starts[found.episode_starts].all()


def test_a_recording_stops_within_an_episode_that_is_too_long(agent, recall):
    found = record(agent, recall, episodes=5, max_steps=4)
    assert (found.steps, found.complete) == (4, False)


def test_distributions_are_probabilities_and_actions_follow_them(agent, recording, recall):
    np.testing.assert_allclose(recording.distributions.sum(-1), 1, atol=1e-6)
    greedy = record(agent, recall, episodes=1, greedy=True)
    assert (greedy.actions == greedy.distributions.argmax(-1)).all()


def test_without_memory_every_step_starts_anew(agent, recall):
    assert record(agent, recall, episodes=1, memory="off").starts.all()


def test_a_unit_has_a_name(agent, recording):
    names = unit_names(agent)
    assert len(set(names)) == len(names) == recording.memory.shape[-1]
    assert names[0] == "lstm h[0]"
    assert names[-1] == "lstm c[7]"


def test_what_is_recorded_of_memory_has_a_bound(agent, recall, monkeypatch):
    units = MemoryStep(agent).units
    monkeypatch.setattr(recording_module, "MAX_MEMORY_BYTES", 4 * units * 3)
    assert record(agent, recall, episodes=5).steps == 3


@pytest.mark.parametrize("core", ["gru", "lru", "attention"])
def test_any_core_can_be_recorded_and_examined(core, recall):
    spec = make_spec(recall)
    agent = MettaAgent(spec, Fast(spec, hidden_size=8, core=core)).eval()
    found = record(agent, recall, episodes=2)
    assert len(unit_names(agent)) == found.memory.shape[-1]
    assert influence(agent, found).erased.max() > 0


@pytest.mark.parametrize("env", [TMaze(), Gym(id="CartPole-v1")])
def test_there_is_a_scene_for_every_step(env):
    spec = make_spec(env)
    found = record(MettaAgent(spec, Fast(spec, hidden_size=4)).eval(), env, max_steps=5)
    assert len(found.scenes) == found.steps == 5
