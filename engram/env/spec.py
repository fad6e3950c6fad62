"""EnvSpec: everything a policy may know about an environment."""

from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal, get_args

import numpy as np
from gymnasium import spaces

ObservationKind = Literal["tokens", "image", "vector"]

GLOBAL_LOCATION = 0xFE  # a token about the agent itself, without a grid location
EMPTY_LOCATION = 0xFF  # padding
MAX_SIZE = 2**22  # numbers in an observation, and actions, of a spec that is read from a file


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

    Observations are always one Box: tokens `[M, 3]` uint8 of (location, feature, value), an image `[H, W, C]`
    or a flat vector. Adapters flatten all other spaces. Actions are Discrete, MultiDiscrete or Box.
    """

    name: str
    single_observation_space: spaces.Box
    single_action_space: spaces.Discrete | spaces.MultiDiscrete | spaces.Box
    observation_kind: ObservationKind
    agents: int = 1  # rows per environment
    window: tuple[int, int] = (0, 0)  # height and width of an agent's view; tokens only
    features: tuple[Feature, ...] = ()  # tokens only
    action_names: tuple[str, ...] = ()
    action_max_params: tuple[int, ...] | None = None  # (type, parameter) actions: maximum parameter of each type
    memoryless_ceiling: float | None = None  # the best mean return without memory, where known
    mean_return_goal: float | None = None  # the best possible mean return, where known

    @classmethod
    def of(cls, env: Any) -> "EnvSpec":
        """The spec of anything that has Gymnasium's `single_observation_space` and `single_action_space`."""
        if isinstance(env, EnvSpec):
            return env
        spec = getattr(env, "spec", None)
        if isinstance(spec, EnvSpec):
            return spec
        observation = env.single_observation_space
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
        """Recurrent layers that suit the observations: vectors and images are learned faster with one."""
        return 2 if self.observation_kind == "tokens" else 1

    def with_features(self, features: tuple[Feature, ...]) -> "EnvSpec":
        return replace(self, features=features)

    def to_json(self) -> dict[str, Any]:
        observation = self.single_observation_space
        return {
            "name": self.name,
            "observation": {
                "kind": self.observation_kind,
                "shape": list(observation.shape),
                "dtype": str(observation.dtype),
            },
            "action": _action_to_json(self.single_action_space),
            "agents": self.agents,
            "window": list(self.window),
            "features": [[f.id, f.name, f.normalization] for f in self.features],
            "action_names": list(self.action_names),
            "action_max_params": None if self.action_max_params is None else list(self.action_max_params),
            "memoryless_ceiling": self.memoryless_ceiling,
            "mean_return_goal": self.mean_return_goal,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "EnvSpec":
        """The spec in a file, which a stranger may have written: raises before it allocates much."""
        observation = data["observation"]
        max_params = data["action_max_params"]
        dtype = np.dtype(str(observation["dtype"]))
        if dtype.kind not in "iuf" or observation["kind"] not in get_args(ObservationKind):
            raise ValueError(f"no observations of the kind {observation['kind']} and dtype {dtype}")
        return cls(
            name=str(data["name"]),
            single_observation_space=box(_shape(observation["shape"]), dtype),
            single_action_space=_action_from_json(data["action"]),
            observation_kind=observation["kind"],
            agents=_size(data["agents"]),
            window=(_size(data["window"][0]), _size(data["window"][1])),
            features=tuple(Feature(_size(i), str(name), float(unit)) for i, name, unit in data["features"]),
            action_names=tuple(map(str, data["action_names"])),
            action_max_params=None if max_params is None else tuple(map(_size, max_params)),
            memoryless_ceiling=data["memoryless_ceiling"],
            mean_return_goal=data["mean_return_goal"],
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


def box(shape: tuple[int, ...], dtype: np.dtype) -> spaces.Box:
    """A Box of this shape, bounded by the range of the dtype."""
    if np.issubdtype(dtype, np.integer):
        limits = np.iinfo(dtype)
        return spaces.Box(limits.min, limits.max, shape, dtype.type)
    return spaces.Box(-np.inf, np.inf, shape, dtype.type)


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
        return spaces.Discrete(_size(data["n"]))
    if data["kind"] == "multi_discrete":
        return spaces.MultiDiscrete([_size(n) for n in data["nvec"]])
    shape = _shape(data["shape"])
    low, high = (np.array([float(v) for v in data[key]], np.float32).reshape(shape) for key in ("low", "high"))
    return spaces.Box(low, high, shape, np.float32)


def _shape(sizes: Any) -> tuple[int, ...]:
    shape = tuple(map(_size, sizes))
    _size(prod(shape))
    return shape


def _size(size: Any) -> int:
    if not isinstance(size, int) or not 0 <= size <= MAX_SIZE:
        raise ValueError(f"{str(size)[:50]} is no size: expected a whole number up to {MAX_SIZE:,}")
    return size
