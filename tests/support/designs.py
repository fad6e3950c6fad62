"""The YAML policies that come with Engram."""

from copy import deepcopy
from typing import Any

from engram.agent.settings import YamlAgent
from engram.config.load import load

PAIRS = ("fast", "latent_attn_tiny", "latent_attn_small", "latent_attn_med")  # those with a Python twin
DESIGNS = (*PAIRS, "reference")


def design(name: str) -> YamlAgent:
    settings = load([f"agent={name}", "env=recall"]).agent
    assert settings is not None
    return settings


def changed(name: str, **changes: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    """The components of a design, with options replaced, components added, or (None) removed."""
    components = deepcopy(design(name).components)
    for component, options in changes.items():
        if options is None:
            del components[component]
        else:
            components[component] = {**components.get(component, {}), **options}
    return components
