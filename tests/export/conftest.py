"""Agents to export, untrained: what they compute matters, not how well they play."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch

from engram.agent.metta_agent import MettaAgent
from engram.config.load import load
from engram.config.run import RunSettings
from engram.env.registry import make_spec


class Made(NamedTuple):
    agent: MettaAgent
    settings: RunSettings


@pytest.fixture(scope="session")
def make() -> Callable[..., Made]:
    def made(*words: str) -> Made:
        torch.manual_seed(1)
        settings = load(words)
        agent = MettaAgent(make_spec(settings.env), settings.policy).eval()
        with torch.no_grad():  # far from uniform, so that a wrong memory changes actions
            for parameter in agent.parameters():
                parameter.mul_(1.5)
        return Made(agent, settings)

    return made
