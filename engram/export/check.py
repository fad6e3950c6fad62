"""Compares an exported policy with the original, step by step in the run's environment."""

# B rows

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict

from engram.agent.actions import MEAN_NOISE, GaussianActions
from engram.agent.metta_agent import MettaAgent
from engram.env.vector import Batch, VectorEnv
from engram.export.program import ExportedStep, PolicyStep
from engram.settings import UserError
from engram.training.evaluate import copy_with_own_memory
from engram.training.settings import EVALUATION_SEED

ENVIRONMENTS = 3
RESET_PROBABILITY = 0.02  # of each row and step, in addition to the ends of episodes
TOLERANCE = 1e-4  # of log-probabilities and values, relative to their size where that exceeds 1
TIE = 1e-5  # two actions are equally likely if their log-probabilities differ by less


class Agreement(NamedTuple):
    """The agreement of an exported policy with the original."""

    steps: int
    decisions: int
    resets: int
    ties: int  # decisions for a different action that is equally likely
    difference: float  # the largest difference of log-probabilities and values

    def merge(self, other: "Agreement") -> "Agreement":
        return Agreement(
            self.steps + other.steps,
            self.decisions + other.decisions,
            self.resets + other.resets,
            self.ties + other.ties,
            max(self.difference, other.difference),
        )

    def describe(self, runtime: str) -> str:
        agreed, ties = f"all of {self.decisions:,}", ""
        if self.ties:
            agreed = f"{self.decisions - self.ties:,} of {self.decisions:,}"
            others = "the other one" if self.ties == 1 else f"the other {self.ties:,}"
            ties = f"; in {others} it took an action that is equally likely (log-probabilities within {TIE})"
        return (
            f"the policy's actions in {agreed} decisions of {self.steps:,} steps with {self.resets} resets, in "
            f"{runtime}{ties}; largest difference of log-probabilities and values {self.difference:.1e}"
        )


@torch.no_grad()
def compare(
    agent: MettaAgent, step: PolicyStep, exported: ExportedStep, env_settings: Any, steps: int = 1000
) -> Agreement:
    """Play `steps` steps with sampled actions; raise `UserError` at the first difference.

    Both policies keep their own memory. The rows of a step go through the exported policy in one call or two, so that
    it is tested with batches of several sizes.
    """
    original = Original(agent, step.use_memory)
    generator = np.random.default_rng(EVALUATION_SEED)
    torch.manual_seed(EVALUATION_SEED)
    with VectorEnv(env_settings, ENVIRONMENTS, seed=EVALUATION_SEED) as env:
        env.reset()
        memory = np.zeros((env.rows, sum(step.memory_sizes.values())), np.float32)
        original.agent.reserve_memory(env.rows)
        agreement = Agreement(0, 0, 0, 0, 0.0)
        for index in range(steps):
            batch = env.recv()
            starts = batch.buffers.starts | (generator.random(env.rows) < RESET_PROBABILITY)
            td = original.act(batch, starts)
            observations = {name: field.numpy() for name, field in step.inputs(td).items()}
            outputs = _call_in_parts(exported, observations, memory, starts, index % env.rows)
            memory = outputs[3]
            agreement = agreement.merge(_compare_step(original, td, outputs, starts, index))
            env.send(batch, td["actions"].numpy())
    return agreement


class Original:
    """The policy as Engram calls it."""

    def __init__(self, agent: MettaAgent, use_memory: bool) -> None:
        self.agent, self.use_memory = copy_with_own_memory(agent), use_memory
        self.continuous = isinstance(agent.action_space, GaussianActions)

    def act(self, batch: Batch, starts: np.ndarray) -> TensorDict:
        """A td with sampled actions; continuous actions are the mean, which is their greedy action."""
        rows = len(starts)
        noise = torch.rand(rows, self.agent.action_space.noise)
        fields = {
            "env_obs": torch.from_numpy(batch.buffers.observations),
            "starts": torch.from_numpy(starts | (not self.use_memory)),
            "previous_actions": torch.from_numpy(batch.buffers.actions),
            "previous_rewards": torch.from_numpy(batch.buffers.rewards),
            "training_env_id_start": torch.zeros(rows, dtype=torch.long),
            "action_noise": torch.full_like(noise, MEAN_NOISE) if self.continuous else noise,
        }
        return self.agent(TensorDict(fields, batch_size=[rows]))

    def expected(self, td: TensorDict) -> tuple[np.ndarray, np.ndarray]:
        """The most likely action, and log-probabilities or log standard deviations."""
        log_probs = td["full_log_probs"]
        action = self.agent.action_space.greedy(log_probs, td["actions"])
        if self.continuous:  # the log-density at the mean depends on the standard deviation only
            log_probs = -log_probs - 0.5 * math.log(2 * math.pi)
        return action.numpy(), log_probs.numpy()


def _call_in_parts(
    exported: ExportedStep, observations: dict[str, np.ndarray], memory: np.ndarray, starts: np.ndarray, first: int
) -> list[np.ndarray]:
    """The outputs for all rows, from one call for the first rows and one for the others."""
    parts = [slice(0, first), slice(first, None)] if first else [slice(None)]
    results = [
        exported({name: field[rows] for name, field in observations.items()}, memory[rows], starts[rows])
        for rows in parts
    ]
    return [np.concatenate(outputs) for outputs in zip(*results, strict=True)]


def _compare_step(
    original: Original, td: TensorDict, outputs: list[np.ndarray], starts: np.ndarray, index: int
) -> Agreement:
    """The agreement in one step; raises if the two differ."""
    action, distribution = original.expected(td)
    pairs = {"log_std" if original.continuous else "log_probs": (outputs[1], distribution)}
    pairs["value"] = (outputs[2], td["values"].numpy())
    if original.continuous:
        pairs["action"] = (outputs[0], action)
    largest = 0.0
    for name, (got, expected) in pairs.items():
        error = np.abs(got - expected) / np.maximum(1, np.abs(expected))
        if got.shape != expected.shape or not error.max(initial=0) <= TOLERANCE:
            raise _disagreement(index, name, got, expected)
        largest = max(largest, float(error.max(initial=0)))
    ties = 0
    if not original.continuous:
        differ = (outputs[0] != action).reshape(len(action), -1).any(axis=1)
        ties = int(differ.sum())
        if ties and not _equally_likely(original, td, outputs[0], action)[differ].all():
            raise _disagreement(index, "action", outputs[0], action)
    return Agreement(1, len(action), int(starts.sum()), ties, largest)


def _equally_likely(original: Original, td: TensorDict, got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Whether both actions have the same probability up to rounding, by row."""
    logits = td["full_log_probs"]
    space = original.agent.action_space
    log_probs = [space.evaluate(logits, torch.from_numpy(actions)).log_prob for actions in (got, expected)]
    return ((log_probs[0] - log_probs[1]).abs() < TIE).numpy()


def _disagreement(index: int, name: str, got: np.ndarray, expected: np.ndarray) -> UserError:
    row = int(np.argmax(np.abs(got - expected).reshape(len(got), -1).max(axis=1))) if got.shape == expected.shape else 0
    return UserError(
        f"export: the exported policy disagrees with the original at step {index + 1}: {name} of row {row} is "
        f"{np.array2string(got[row])}, expected {np.array2string(expected[row])}. Nothing was written. A policy that "
        "draws random numbers, or keeps state outside of its memory, cannot be exported"
    )
