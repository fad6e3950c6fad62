"""Engram trains reinforcement-learning agents with memory and proves that the memory is handled right."""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

# Names are loaded on first use: environment workers and the settings check must not wait for torch.
_HOME = {
    "LSTMWrapper": "engram.agent.policies.lstm_wrapper",
    "Fast": "engram.agent.policies.fast",
    "LatentAttnTiny": "engram.agent.policies.latent_attn",
    "LatentAttnSmall": "engram.agent.policies.latent_attn",
    "LatentAttnMed": "engram.agent.policies.latent_attn",
    "Example": "engram.agent.policies.example",
    "ComponentPolicy": "engram.agent.components.policy",
    "MettaAgent": "engram.agent.metta_agent",
    "Experience": "engram.training.experience",
    "EnvSpec": "engram.env.spec",
    "VectorEnv": "engram.env.vector",
}
__all__ = [
    "ComponentPolicy",
    "EnvSpec",
    "Example",
    "Experience",
    "Fast",
    "LSTMWrapper",
    "LatentAttnMed",
    "LatentAttnSmall",
    "LatentAttnTiny",
    "MettaAgent",
    "VectorEnv",
    "__version__",
]

if TYPE_CHECKING:
    from engram.agent.components.policy import ComponentPolicy
    from engram.agent.metta_agent import MettaAgent
    from engram.agent.policies.example import Example
    from engram.agent.policies.fast import Fast
    from engram.agent.policies.latent_attn import LatentAttnMed, LatentAttnSmall, LatentAttnTiny
    from engram.agent.policies.lstm_wrapper import LSTMWrapper
    from engram.env.spec import EnvSpec
    from engram.env.vector import VectorEnv
    from engram.training.experience import Experience


def __getattr__(name: str):
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'engram' has no attribute '{name}'")
