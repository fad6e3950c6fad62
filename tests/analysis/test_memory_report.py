"""What an agent remembers: an agent that recalls a cue perfectly, by hand, and what is done to its memory."""

import numpy as np
import pytest
import torch
from support.remembering import ENV, remembering

from engram.analysis.influence import influence, memory_horizon
from engram.analysis.memory_report import Frozen, Swapped, erased, mean_return, memory_report
from engram.analysis.probe import agent_episodes, facts, observation_features
from engram.analysis.recording import record
from engram.env.registry import make_spec
from engram.env.settings import Gym, TMaze
from engram.training.evaluate import evaluate


@pytest.fixture(scope="module")
def report():
    return memory_report(remembering(), ENV, 60)


def test_the_return_needs_the_memory_of_the_cue(report):
    assert report.episodes == 60
    assert report.returns["normal"].mean == 1
    assert report.returns["frozen"].mean == 1  # all that matters is in the first observation
    assert report.returns["erased"].high < 0.6
    assert report.returns["swapped"].high < 0.6


def test_the_cue_can_be_read_until_the_query(report):
    assert report.steps == list(range(ENV.delay + 2))
    named = [fact for fact in report.facts if fact.name == "first saw observation[0]"]
    assert len(named) == 1
    assert named[0].measure == "accuracy"
    for step, score in enumerate(named[0].scores):
        assert score.memory == 1
        assert score.control < 0.7
        assert (score.observation == 1) == (step == 0)


def test_the_horizon_is_the_distance_to_the_cue(report):
    """The wrong cue is named with certainty, so each change is almost 1 until the cue itself is seen again."""
    assert report.horizon.lags == list(range(1, ENV.delay + 2))
    assert all(change.mean > 0.6 for change in report.horizon.change)
    assert report.horizon.largest > 0.6


def test_the_observation_some_steps_ago_is_not_remembered_if_it_was_blank(report):
    assert [each.lag for each in report.past] == [1, 2, 3, 4]
    assert all(each.control < 0.1 for each in report.past)


def test_the_horizon_equals_the_influence_of_the_erased_past(agent, recording):
    changes = influence(agent, recording).erased
    found = memory_horizon(agent, recording)
    stops = [*recording.episode_starts[1:], recording.steps]
    for lag, change in zip(found.lags, found.change, strict=True):
        means = []
        for start, stop in zip(recording.episode_starts, stops, strict=True):
            steps = range(start + lag, stop)  # erased just before step - lag + 1
            if len(steps):
                means.append(np.mean([changes[step, 0, step - lag - start] for step in steps]))
        assert change.mean == pytest.approx(np.mean(means), abs=1e-5)


def test_erased_memory_is_an_evaluation_without_memory(agent, recall):
    played = record(agent, recall, episodes=3, num_envs=4, seed=2, pictures=False, change=erased)
    expected = evaluate(agent, recall, episodes=12, num_envs=4, seed=2, memory="off")
    assert mean_return(played, 1, 3).mean == pytest.approx(expected.returns.mean)


def test_frozen_memory_is_that_of_the_first_observation():
    frozen, first, later = Frozen(), torch.rand(2, 3), torch.rand(2, 3)
    frozen(torch.zeros(2, 3), torch.tensor([0, 0]))
    assert torch.equal(frozen(first, torch.tensor([1, 1])), first)
    assert torch.equal(frozen(later, torch.tensor([2, 1])), torch.stack([first[0], later[1]]))


def test_swapped_memory_is_that_of_another_episode_at_one_step():
    bank, memory = torch.full((5, 3), 7.0), torch.rand(2, 3)
    found = Swapped(bank, step=4)(memory, torch.tensor([3, 4]))
    assert torch.equal(found, torch.stack([memory[0], bank[0]]))


def test_facts_of_a_token_world_have_the_names_of_its_features(agent):
    from engram.agent.metta_agent import MettaAgent
    from engram.agent.policies.fast import Fast

    env = TMaze(max_steps=10)
    spec = make_spec(env)
    found = record(MettaAgent(spec, Fast(spec, hidden_size=4)).eval(), env, episodes=1, num_envs=12, pictures=False)
    named = [fact.name for fact in facts(found, agent_episodes(found))]
    assert sum("cue_" in name for name in named) == 1  # the second cue is the absence of the first
    features, names = observation_features(spec, found.observations)
    assert features.shape == (*found.starts.shape, len(names))


def test_the_mean_length_is_that_of_whole_episodes():
    from engram.agent.metta_agent import MettaAgent
    from engram.agent.policies.fast import Fast

    env = Gym(id="CartPole-v1")
    spec = make_spec(env)
    report = memory_report(MettaAgent(spec, Fast(spec, hidden_size=4)).eval(), env, 8)
    assert report.length == pytest.approx(report.returns["normal"].mean)  # each step of CartPole pays 1


def test_an_episode_that_ends_with_the_recording_is_complete(agent, recall):
    found = record(agent, recall, episodes=1, num_envs=12, pictures=False)
    episodes = agent_episodes(found)
    assert episodes.complete.sum() == len(found.episodes) == 12
