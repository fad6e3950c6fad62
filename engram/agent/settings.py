"""Settings of policies. Light to import: they are checked before torch is loaded."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from engram.settings import Settings

POLICIES = {  # name -> where the class is
    "fast": "engram.agent.policies.fast:Fast",
    "latent_attn_tiny": "engram.agent.policies.latent_attn:LatentAttnTiny",
    "latent_attn_small": "engram.agent.policies.latent_attn:LatentAttnSmall",
    "latent_attn_med": "engram.agent.policies.latent_attn:LatentAttnMed",
    "example": "engram.agent.policies.example:Example",
}


class PyAgent(Settings):
    """A policy written in Python: one of ours by name, or `file.py:Class` or `package.module:Class`.

    Open on purpose: further keys are keyword arguments of the policy, which says itself which ones it does not know.
    """

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    name: str = "fast"
    core: Literal["lstm", "gru", "mingru"] = "lstm"
    hidden_size: Annotated[int, Field(ge=1)] | None = None  # null: the policy's own
    num_layers: Annotated[int, Field(ge=1)] | None = None
    clip_range: Annotated[float, Field(ge=0)] = 0.0  # 0: weights are not clipped
    analyze_weights_interval: Annotated[int, Field(ge=0)] = 300  # epochs; 0: never

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for the policy's constructor."""
        return {k: v for k, v in self.model_dump(exclude={"name"}).items() if v is not None}


class Agent(Settings):
    """A policy assembled from YAML: named components, each with a `kind`, its `sources` and the kind's options.

    They are plain data here; `components.graph` reads them and finds what is wrong.
    """

    name: str = "custom"
    components: dict[str, dict[str, Any]]
    clip_range: Annotated[float, Field(ge=0)] = 0.0  # 0: weights are not clipped
    analyze_weights_interval: Annotated[int, Field(ge=0)] = 300  # epochs; 0: never
