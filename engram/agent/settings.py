"""Settings of policies. Imports no torch, so that settings are checked before it is loaded."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from engram.settings import Settings

POLICIES = {  # name -> module:class
    "fast": "engram.agent.policies.fast:Fast",
    "latent_attn_tiny": "engram.agent.policies.fast:LatentAttnTiny",
    "latent_attn_small": "engram.agent.policies.fast:LatentAttnSmall",
    "latent_attn_med": "engram.agent.policies.fast:LatentAttnMed",
    "example": "engram.agent.policies.example:Example",
}
Previous = list[Literal["action", "reward"]] | None  # of the previous step, 0 where an episode starts


class PyAgent(Settings):
    """A policy written in Python: a bundled one by name, or `file.py:Class` or `package.module:Class`.

    Accepts unknown keys: they become keyword arguments of the policy, which warns about those it does not use.
    """

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    name: str = "fast"
    core: Literal["lstm", "gru", "mingru", "lru", "attention"] | None = None  # null: lstm, for symbols only lru
    window: Annotated[int, Field(ge=1)] | None = None  # past steps that core=attention sees; null: 64
    hidden_size: Annotated[int, Field(ge=1)] | None = None  # null: the policy's default
    num_layers: Annotated[int, Field(ge=1)] | None = None
    previous: Previous = None  # inputs beside the observation; null: the action, where bundled policies see symbols
    critic_only: list[str] | None = None  # parts of the observation that only the critic sees
    critic_memory: bool | None = None  # with critic_only: whether the critic has its own memory
    counts: bool | None = None  # whether symbols are counted; null: where bundled policies see only symbols
    clip_range: Annotated[float, Field(ge=0)] = 0.0  # 0: weights are not clipped
    analyze_weights_interval: Annotated[int, Field(ge=0)] = 300  # epochs; 0: never

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for the policy's constructor."""
        return {k: v for k, v in self.model_dump(exclude={"name"}).items() if v is not None}


class YamlAgent(Settings):
    """A policy assembled from YAML: named components, each with a `kind`, its `sources` and the kind's options.

    They are plain data here; `components.graph` reads and checks them.
    """

    name: str = "custom"
    components: dict[str, dict[str, Any]]
    previous: Previous = None  # inputs of _core_ beside its sources; null: the action, where observations have symbols
    clip_range: Annotated[float, Field(ge=0)] = 0.0  # 0: weights are not clipped
    analyze_weights_interval: Annotated[int, Field(ge=0)] = 300  # epochs; 0: never
