"""All policies, acting and learning, on observations of the arena."""

# B rows, T steps

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from tensordict import TensorDict

from engram.agent.metta_agent import MettaAgent
from engram.agent.settings import POLICIES, PyAgent
from engram.bench.race import Contestant, Options, Step, in_process, run_race
from engram.bench.result import BenchResult
from engram.env.settings import Arena
from engram.env.spec import EnvSpec
from engram.env.vector import VectorEnv

SEGMENTS = 64  # per learning call


def measure(options: Options, progress: Callable[[str], None]) -> BenchResult:
    names, rows = options.policies or list(POLICIES), options.rows[0]
    spec, acting_obs, learning_obs = arena_observations(rows, min(SEGMENTS, rows), options.steps)
    result = BenchResult("policy", options.to_json())
    for what, observations in (("acting", acting_obs), ("learning", learning_obs)):

        def contestant(name: str, threads: int, observations: torch.Tensor = observations) -> Contestant:
            make = partial(policy_calls, spec, PyAgent(name=name), observations, options.resets)
            return Contestant(name, in_process(make, threads), threads)

        contestants = [contestant(name, threads) for name in names for threads in options.threads]
        shape = " x ".join(map(str, observations.shape[:-2]))
        name = f"arena, {what}: {shape} observations per call"
        result.races.append(
            run_race(name, contestants, options.rounds, options.seconds, baseline=names[0], progress=progress)
        )
    return result


def arena_observations(rows: int, segments: int, steps: int) -> tuple[EnvSpec, torch.Tensor, torch.Tensor]:
    """Observations [B, M, 3] and [segments, T, M, 3] of agents that act randomly in the arena."""
    settings, random = Arena(), np.random.default_rng(0)
    with VectorEnv(settings, num_envs=-(-max(rows, segments) // settings.agents)) as env:
        env.reset()
        history = []
        for _ in range(max(steps, 8)):
            batch = env.recv()
            history.append(torch.from_numpy(batch.buffers.observations.copy()))
            env.send(batch, random.integers(int(env.spec.single_action_space.n), size=env.rows))
        return env.spec, history[-1][:rows].clone(), torch.stack(history, 1)[:segments, -steps:].clone()


@contextmanager
def policy_calls(spec: EnvSpec, settings: PyAgent, observations: torch.Tensor, resets: float) -> Iterator[Step]:
    """One policy call per step: acting on observations [B, M, 3], learning with backward pass on [B, T, M, 3]."""
    torch.manual_seed(0)
    agent = MettaAgent(spec, settings)
    shape = observations.shape[:-2]
    agent.reserve_memory(shape[0])
    fields = {
        "env_obs": observations,
        "dones": torch.rand(shape) < resets,
        "truncateds": torch.zeros(shape, dtype=torch.bool),
    }

    def act() -> float:
        with torch.no_grad():
            agent(TensorDict(dict(fields), shape))
        return shape[0]

    memory = {name: torch.zeros(*shape, *size) for name, size in agent.memory_shapes().items()}
    actions = torch.zeros(shape, dtype=torch.long)

    def learn() -> float:
        agent.zero_grad(set_to_none=True)
        td = agent(TensorDict({**fields, "memory": TensorDict(memory, shape)}, shape), action=actions)
        (td["act_log_prob"].sum() + td["entropy"].sum() + td["value"].square().sum()).backward()
        return shape.numel()

    yield act if len(shape) == 1 else learn
