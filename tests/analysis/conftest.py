"""A small agent, and episodes that it played."""

import pytest

from engram.agent.metta_agent import MettaAgent
from engram.agent.policies.fast import Fast
from engram.analysis.recording import Recording, record
from engram.env.registry import make_spec
from engram.env.settings import Recall

ENV = Recall(cues=3, delay=4, delay_jitter=2)


@pytest.fixture(scope="module")
def recall() -> Recall:
    return ENV


@pytest.fixture(scope="module")
def agent() -> MettaAgent:
    spec = make_spec(ENV)
    return MettaAgent(spec, Fast(spec, hidden_size=8, previous=["action", "reward"])).eval()


@pytest.fixture(scope="module")
def recording(agent: MettaAgent) -> Recording:
    return record(agent, ENV, episodes=3, seed=4)
