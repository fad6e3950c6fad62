"""EnvSpec: everything a policy may know about an environment."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from engram.env.parts import (
    ACTION_MASK,
    OBSERVATION,
    PREVIOUS_ACTION,
    PackedRows,
    Part,
    leaves,
    part_of,
    stored_shape,
    stored_size,
)

ObservationKind = Literal["tokens", "image", "symbols", "vector", "parts"]

GLOBAL_LOCATION = 0xFE  # a token about the agent itself, without a grid location
EMPTY_LOCATION = 0xFF  # padding


@dataclass(frozen=True)
class Feature:
    """One kind of observation token: its id, its name, and the divisor that normalises its values to about 1."""

    id: int
    name: str
    normalization: float


@dataclass(frozen=True)
class EnvSpec:
    """Spaces of one agent (a row), and names of features and actions.

    >>> import gymnasium
    >>> spec = EnvSpec.of(gymnasium.make_vec("CartPole-v1"))
    >>> spec.observation_kind, spec.single_observation_space.shape
    ('vector', (4,))

    An observation is one Box: tokens `[M, 3]` uint8 of (location, feature, value), an image `[H, W, C]`, a grid of
    symbols `[H, W, C]` or a flat vector. Dict and Tuple observations have `parts`, each with a name, a kind and a Box.
    Actions are Discrete, MultiDiscrete or Box.
    """

    name: str
    single_observation_space: spaces.Box | spaces.Dict
    single_action_space: spaces.Discrete | spaces.MultiDiscrete | spaces.Box
    observation_kind: ObservationKind
    agents: int = 1  # rows per environment
    window: tuple[int, int] = (0, 0)  # height and width of an agent's view; tokens only
    features: tuple[Feature, ...] = ()  # tokens only
    action_names: tuple[str, ...] = ()
    action_max_params: tuple[int, ...] | None = None  # (type, parameter) actions: maximum parameter of each type
    memoryless_ceiling: float | None = None  # the best mean return without memory, where known
    mean_return_goal: float | None = None  # the best possible mean return, where known
    parts: tuple[Part, ...] = ()  # of a Dict or Tuple observation
    symbols: tuple[int, ...] = ()  # of one grid of symbols: the number of values of each channel
    agent_names: tuple[str, ...] = ()  # where agents have names
    action_mask: bool = False  # whether each observation comes with a mask of the actions that are possible

    @classmethod
    def of_parts(cls, name: str, parts: list[Part], action: spaces.Space, **others: Any) -> "EnvSpec":
        """The spec of an environment with these parts; a single part without a name is the whole observation."""
        if [part.name for part in parts] == [OBSERVATION]:
            (part,) = parts
            return cls(name, part.space, action, part.kind, symbols=part.symbols, **others)
        space = spaces.Dict({part.name: part.space for part in parts})
        return cls(name, space, action, "parts", parts=tuple(parts), **others)

    @classmethod
    def of(cls, env: Any) -> "EnvSpec":
        """The spec of anything that has Gymnasium's `single_observation_space` and `single_action_space`."""
        if isinstance(env, EnvSpec):
            return env
        spec = getattr(env, "spec", None)
        if isinstance(spec, EnvSpec):
            return spec
        observation = env.single_observation_space
        if isinstance(observation, spaces.Dict | spaces.Tuple):
            name = type(env).__name__
            parts = [part_of(leaf, name) for leaf in leaves(observation)]
            return cls.of_parts(name, parts, env.single_action_space)
        kind = observation_kind(observation)
        tokens = kind == "tokens"
        height, width = int(getattr(env, "obs_height", 11)), int(getattr(env, "obs_width", 11))
        return cls(
            name=type(env).__name__,
            single_observation_space=observation,
            single_action_space=env.single_action_space,
            observation_kind=kind,
            window=(height, width) if tokens else (0, 0),
            features=_features_of(env) if tokens else (),
            action_names=tuple(getattr(env, "action_names", ())),
            action_max_params=getattr(env, "action_max_params", None),
        )

    @property
    def default_layers(self) -> int:
        """Recurrent layers that suit the observations: all but tokens are learned faster with one."""
        return 2 if self.observation_kind == "tokens" else 1

    @property
    def default_core(self) -> str:
        """The core that suits the observations: an LRU for symbols, as it learns sooner how long ago each was seen."""
        return "lru" if self.only_symbols else "lstm"

    @property
    def only_symbols(self) -> bool:
        """Whether observations are only symbols outside of grids, as in card games, beside the previous action."""
        parts = [part for part in self.all_parts if part.name != PREVIOUS_ACTION]
        return all(part.kind == "symbols" and len(part.shape) <= 1 for part in parts)

    @property
    def all_parts(self) -> tuple[Part, ...]:
        """The parts; of one Box, that Box as the only part, without a name."""
        if self.observation_kind == "parts":
            return self.parts
        assert isinstance(self.single_observation_space, spaces.Box)
        return (Part(OBSERVATION, self.observation_kind, self.single_observation_space, self.symbols),)

    @property
    def mask_size(self) -> int:
        """Entries of an action mask: one per action, for several actions one after the other."""
        space = self.single_action_space
        if isinstance(space, spaces.Discrete):
            return int(space.n)
        return int(space.nvec.sum()) if isinstance(space, spaces.MultiDiscrete) else 0

    @cached_property
    def packing(self) -> PackedRows | None:
        """The layout of parts and mask in a row of bytes; None if a row is just the observation."""
        if self.observation_kind != "parts" and not self.action_mask:
            return None
        fields = {part.name: (part.shape, part.dtype) for part in self.all_parts}
        if self.action_mask:
            fields[ACTION_MASK] = ((self.mask_size,), np.dtype(np.bool_))
        return PackedRows(fields)

    @property
    def row(self) -> tuple[tuple[int, ...], np.dtype]:
        """Shape and dtype of an observation in buffers and experience: packed bytes, or the observation itself."""
        if self.packing is not None:
            return (self.packing.size,), np.dtype(np.uint8)
        (part,) = self.all_parts
        return part.shape, part.dtype

    def with_action_mask(self) -> "EnvSpec":
        """The spec with action masks, which are then not part of the observation."""
        if not self.mask_size:
            return self
        if self.observation_kind != "parts":
            return replace(self, action_mask=True)
        return replace(self.without_parts([ACTION_MASK]), action_mask=True)

    def with_parts(self, names: Collection[str]) -> "EnvSpec":
        """The spec with these parts only."""
        parts = tuple(part for part in self.parts if part.name in names)
        return replace(
            self, single_observation_space=spaces.Dict({part.name: part.space for part in parts}), parts=parts
        )

    def without_parts(self, names: Collection[str]) -> "EnvSpec":
        return self.with_parts([part.name for part in self.parts if part.name not in names]) if names else self

    def with_features(self, features: tuple[Feature, ...]) -> "EnvSpec":
        return replace(self, features=features)

    def to_json(self) -> dict[str, Any]:
        parts = [part.to_json() for part in self.all_parts]
        return {
            "name": self.name,
            "observation": {"kind": "parts", "parts": parts} if self.observation_kind == "parts" else parts[0],
            "action": _action_to_json(self.single_action_space),
            "agents": self.agents,
            "window": list(self.window),
            "features": [[f.id, f.name, f.normalization] for f in self.features],
            "action_names": list(self.action_names),
            "action_max_params": None if self.action_max_params is None else list(self.action_max_params),
            "memoryless_ceiling": self.memoryless_ceiling,
            "mean_return_goal": self.mean_return_goal,
            "agent_names": list(self.agent_names),
            "action_mask": self.action_mask,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "EnvSpec":
        """The spec in a file, which a stranger may have written: raises before it allocates much."""
        observation = data["observation"]
        max_params = data["action_max_params"]
        return cls.of_parts(
            str(data["name"]),
            [Part.from_json(part) for part in observation.get("parts", [observation])],
            _action_from_json(data["action"]),
            agents=stored_size(data["agents"]),
            window=(stored_size(data["window"][0]), stored_size(data["window"][1])),
            features=tuple(Feature(stored_size(i), str(name), float(unit)) for i, name, unit in data["features"]),
            action_names=tuple(map(str, data["action_names"])),
            action_max_params=None if max_params is None else tuple(map(stored_size, max_params)),
            memoryless_ceiling=data["memoryless_ceiling"],
            mean_return_goal=data["mean_return_goal"],
            agent_names=tuple(map(str, data.get("agent_names", ()))),
            action_mask=bool(data.get("action_mask", False)),
        )


def observation_kind(space: spaces.Space) -> ObservationKind:
    """The kind of encoder a Box needs: `[M, 3]` uint8 are tokens, three dimensions an image, one a vector."""
    if not isinstance(space, spaces.Box):
        raise ValueError(f"a policy expects one Box, got {space}: flatten it in the environment's adapter")
    if space.dtype == np.uint8 and len(space.shape) == 2 and space.shape[1] == 3:
        return "tokens"
    if len(space.shape) == 3:
        return "image"
    if len(space.shape) == 1:
        return "vector"
    raise ValueError(f"no encoder for observations of shape {space.shape}: flatten them to one dimension")


def _features_of(env: Any) -> tuple[Feature, ...]:
    """The features of an environment; all 255 ids if it does not list its own."""
    normalizations = getattr(env, "feature_normalizations", None)
    if normalizations is None:
        return tuple(Feature(i, f"feature_{i}", 255.0) for i in range(255))
    return tuple(Feature(int(i), f"feature_{i}", float(value)) for i, value in sorted(normalizations.items()))


def _action_to_json(space: spaces.Space) -> dict[str, Any]:
    if isinstance(space, spaces.Discrete):
        return {"kind": "discrete", "n": int(space.n)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"kind": "multi_discrete", "nvec": [int(n) for n in space.nvec]}
    if isinstance(space, spaces.Box):
        low, high = (np.broadcast_to(bound, space.shape).ravel().tolist() for bound in (space.low, space.high))
        return {"kind": "box", "shape": list(space.shape), "low": [str(v) for v in low], "high": [str(v) for v in high]}
    raise ValueError(f"actions must be Discrete, MultiDiscrete or Box, not {space}")


def _action_from_json(data: dict[str, Any]) -> spaces.Discrete | spaces.MultiDiscrete | spaces.Box:
    if data["kind"] == "discrete":
        return spaces.Discrete(stored_size(data["n"]))
    if data["kind"] == "multi_discrete":
        return spaces.MultiDiscrete([stored_size(n) for n in data["nvec"]])
    shape = stored_shape(data["shape"])
    low, high = (np.array([float(v) for v in data[key]], np.float32).reshape(shape) for key in ("low", "high"))
    return spaces.Box(low, high, shape, np.float32)
