"""Engram trains reinforcement-learning agents with memory, and checks that their memory is handled correctly.

The public names are those of `__all__`; each has an example in its docstring. Everything else is internal and may move.
"""

from importlib import import_module
from typing import TYPE_CHECKING

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

__version__ = "0.1.0"

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

# Imported on first use: environment workers and the check of the settings must not wait for torch.
_MODULES = {
    # Write a policy
    "LSTMWrapper": "engram.agent.policies.lstm_wrapper",
    "ComponentPolicy": "engram.agent.components.policy",
    "MettaAgent": "engram.agent.metta_agent",
    # Ready policies
    "Example": "engram.agent.policies.example",
    "Fast": "engram.agent.policies.fast",
    "LatentAttnTiny": "engram.agent.policies.latent_attn",
    "LatentAttnSmall": "engram.agent.policies.latent_attn",
    "LatentAttnMed": "engram.agent.policies.latent_attn",
    # Environments
    "EnvSpec": "engram.env.spec",
    "VectorEnv": "engram.env.vector",
    # Training
    "Experience": "engram.training.experience",
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'engram' has no attribute '{name}'")
