"""Playing a policy on random observations with random episode ends, and replaying what was played."""

from itertools import pairwise
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch import Tensor, nn

from engram.agent.policies.base import Policy
from engram.env.spec import EnvSpec, Feature


class Segment(NamedTuple):
    """One rollout of all rows: fields [B, T] and the memory it began with."""

    fields: TensorDict
    memory: dict[str, Tensor]


def vector_env(size: int = 5, actions: spaces.Space | None = None) -> SimpleNamespace:
    """The minimum that a policy needs of an environment."""
    return SimpleNamespace(
        single_observation_space=spaces.Box(-np.inf, np.inf, (size,), np.float32),
        single_action_space=actions or spaces.Discrete(4),
    )


def token_spec(window: int = 5, tokens: int = 12, features: int = 6, actions: int = 5) -> EnvSpec:
    return EnvSpec(
        name="tokens",
        single_observation_space=spaces.Box(0, 255, (tokens, 3), np.uint8),
        single_action_space=spaces.Discrete(actions),
        observation_kind="tokens",
        window=(window, window),
        features=tuple(Feature(i, f"feature_{i}", 10.0 + i) for i in range(features)),
    )


def image_env(height: int = 16, width: int = 12, dtype: type = np.uint8) -> SimpleNamespace:
    low, high = (0, 255) if dtype is np.uint8 else (-np.inf, np.inf)
    return SimpleNamespace(
        single_observation_space=spaces.Box(low, high, (height, width, 3), dtype),
        single_action_space=spaces.Discrete(4),
    )


def random_observations(spec: EnvSpec, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    space = spec.single_observation_space
    if spec.observation_kind == "symbols":
        numbers = torch.tensor(spec.symbols)
        return (torch.rand(*shape, *space.shape, generator=generator) * numbers).to(torch.int32)
    if spec.observation_kind != "tokens" and space.dtype == np.uint8:
        return torch.randint(256, (*shape, *space.shape), dtype=torch.uint8, generator=generator)
    if spec.observation_kind != "tokens":
        return torch.randn(*shape, *space.shape, generator=generator)
    count = spec.single_observation_space.shape[0]
    height, width = spec.window

    def draw(below: int) -> Tensor:
        return torch.randint(below, (*shape, count), generator=generator)

    location = draw(height) * 16 + draw(width)
    location[..., 0] = 0xFE
    ids = torch.tensor([feature.id for feature in spec.features])
    tokens = torch.stack([location, ids[draw(len(ids))], draw(255)], -1).to(torch.uint8)
    used = torch.randint(1, count + 1, (*shape, 1), generator=generator)
    tokens[torch.arange(count).expand(*shape, count) >= used] = 0xFF
    return tokens


def slices(rows: int, generator: torch.Generator) -> list[slice]:
    """All rows in uneven slices and random order."""
    cuts = sorted({0, rows, *torch.randint(rows, (2,), generator=generator).tolist()})
    parts = [slice(a, b) for a, b in pairwise(cuts)]
    return [parts[i] for i in torch.randperm(len(parts), generator=generator).tolist()]


@torch.no_grad()
def play(
    policy: nn.Module,
    rows: int,
    steps: int,
    end_chance: float,
    rollouts: int = 3,
    seed: int = 0,
    spec: EnvSpec | None = None,
) -> list[Segment]:
    """Several rollouts in a row, memory carried on from one to the next."""
    generator = torch.Generator().manual_seed(seed)
    inner: Policy = getattr(policy, "policy", None) or policy
    inner = inner if isinstance(inner, Policy) else policy
    spec = spec or inner.env_spec
    segments = []
    for _ in range(rollouts):
        memory = inner.memory_of(torch.arange(rows))
        ends = torch.rand(rows, steps, generator=generator) < end_chance
        kind = torch.rand(rows, steps, generator=generator) < 0.5
        fields = TensorDict(
            {
                "env_obs": random_observations(spec, (rows, steps), generator),
                "dones": ends & kind,
                "truncateds": ends & ~kind,
            },
            [rows, steps],
        )
        played: list[list[TensorDict]] = []
        for t in range(steps):
            parts: dict[int, TensorDict] = {}
            for part in slices(rows, generator):
                td = fields[part, t].clone()
                td["training_env_id_start"] = torch.full((part.stop - part.start,), part.start)
                parts[part.start] = policy(td)
            played.append([parts[start] for start in sorted(parts)])
        for name in ("actions", "act_log_prob", "values", "full_log_probs"):
            fields[name] = torch.stack([torch.cat([part[name] for part in step]) for step in played], 1)
        segments.append(Segment(fields, memory))
    return segments


def replay(policy: nn.Module, segment: Segment) -> TensorDict:
    """Replays a segment from the memory it began with."""
    rows, steps = segment.fields.batch_size
    td = segment.fields.select("env_obs", "dones", "truncateds").clone()
    memory = {name: m.unsqueeze(1).expand(-1, steps, *m.shape[1:]) for name, m in segment.memory.items()}
    td["memory"] = TensorDict(memory, [rows, steps])
    return policy(td, action=segment.fields["actions"])


def replay_difference(policy: nn.Module, segments: list[Segment]) -> float:
    """The largest difference in log-probabilities and values between acting and replay."""
    worst = 0.0
    for segment in segments:
        replayed = replay(policy, segment)
        for new, old in (("act_log_prob", "act_log_prob"), ("value", "values")):
            worst = max(worst, (replayed[new] - segment.fields[old]).abs().max().item())
    return worst
