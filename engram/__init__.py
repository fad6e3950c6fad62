"""Engram trains reinforcement-learning agents with memory, and checks that their memory is handled correctly.

The public names are those of `__all__`; each has an example in its docstring. Everything else is internal and may move.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engram.agent.components.policy import ComponentPolicy
    from engram.agent.metta_agent import MettaAgent
    from engram.agent.policies.example import Example
    from engram.agent.policies.fast import Fast, LatentAttnMed, LatentAttnSmall, LatentAttnTiny
    from engram.agent.policies.lstm_wrapper import LSTMWrapper
    from engram.api.agent import Agent, load
    from engram.api.audit import audit
    from engram.api.evaluate import evaluate
    from engram.api.make_env import make_env
    from engram.api.run import Run
    from engram.api.run import open_run as open
    from engram.api.train import train
    from engram.env.spec import EnvSpec
    from engram.env.vector import VectorEnv
    from engram.settings import SettingsError, UserError
    from engram.training.experience import Experience

__version__ = "0.1.0"

__all__ = [
    "Agent",
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
    "Run",
    "SettingsError",
    "UserError",
    "VectorEnv",
    "__version__",
    "audit",
    "evaluate",
    "load",
    "make_env",
    "open",
    "train",
]

# Imported on first use: environment workers and the check of the settings must not wait for torch.
_MODULES = {
    # Train and act
    "train": "engram.api.train",
    "open": "engram.api.run:open_run",
    "load": "engram.api.agent",
    "evaluate": "engram.api.evaluate",
    "make_env": "engram.api.make_env",
    "Run": "engram.api.run",
    "Agent": "engram.api.agent",
    "UserError": "engram.settings",
    "SettingsError": "engram.settings",
    # Write a policy
    "LSTMWrapper": "engram.agent.policies.lstm_wrapper",
    "ComponentPolicy": "engram.agent.components.policy",
    "MettaAgent": "engram.agent.metta_agent",
    # Ready policies
    "Example": "engram.agent.policies.example",
    "Fast": "engram.agent.policies.fast",
    "LatentAttnTiny": "engram.agent.policies.fast",
    "LatentAttnSmall": "engram.agent.policies.fast",
    "LatentAttnMed": "engram.agent.policies.fast",
    # Environments
    "EnvSpec": "engram.env.spec",
    "VectorEnv": "engram.env.vector",
    # Training
    "Experience": "engram.training.experience",
}


def __getattr__(name: str) -> object:
    if name == "audit":  # a callable module, not an attribute of one
        return import_module("engram.audit")
    if name in _MODULES:
        module, _, attribute = _MODULES[name].partition(":")
        return getattr(import_module(module), attribute or name)
    raise AttributeError(f"module 'engram' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
