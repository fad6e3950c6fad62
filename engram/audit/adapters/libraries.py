"""Adapters for policies of other libraries, each called as that library's training loop calls it."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor
from torch.distributions import Categorical

from engram.audit.adapters.base import ActingBatch, PolicyOutput, Segment
from engram.audit.adapters.external_state import ExternalStateAdapter, State, leaves, per_row

MAX_LISTED_ACTIONS = 64  # with more, not every action's probability is computed


class PufferLibAdapter(ExternalStateAdapter):
    """PufferLib's LSTM wrapper: `forward_eval(obs, state)` acts, `forward(obs, state)` learns.

    Its loop zeroes the state before each rollout, passes `done` along with it, and learns every segment from zero.
    """

    kind = "pufferlib"
    assumed_loop = "PufferLib 3's: zeroes the state before a rollout, never where an episode ends; learns from zero"
    resets_between_rollouts = True

    def initial_state(self, rows: int) -> State:
        size, dtype = int(self.policy.hidden_size), next(self.policy.parameters()).dtype  # type: ignore[arg-type]
        return {"lstm_h": torch.zeros(rows, size, dtype=dtype), "lstm_c": torch.zeros(rows, size, dtype=dtype)}

    def act_step(self, batch: ActingBatch, starts: Tensor, state: State) -> tuple[PolicyOutput, State]:
        rows = len(starts)
        given = {
            **state,
            "reward": torch.zeros(rows),
            "done": starts.float(),
            "env_id": slice(batch.first_id, batch.first_id + rows),
            "mask": torch.ones(rows, dtype=torch.bool),
        }
        logits, value = self.policy.forward_eval(batch.observations, given)  # type: ignore[operator]
        return self.acting_output(logits, value, batch.noise), {name: given[name] for name in state}

    def learn_segment(self, segment: Segment, starts: Tensor, state: State) -> PolicyOutput:
        given = {"action": segment.actions, "lstm_h": None, "lstm_c": None}
        logits, value = self.policy(segment.observations, given)
        return self.learning_output(logits, value, segment)

    def memory_of(self, ids: list[int]) -> Any:
        return None  # its loop stores none


class CleanRLAdapter(ExternalStateAdapter):
    """CleanRL's agent: `get_action_and_value(x, lstm_state, done, action=None)`, time first when learning."""

    kind = "cleanrl"
    assumed_loop = "CleanRL's: carries the state, passes done with each observation, and learns from the stored state"

    def act_step(self, batch: ActingBatch, starts: Tensor, state: State) -> tuple[PolicyOutput, State]:
        rows, done = len(starts), starts.to(leaves(state)[0].dtype)
        call: Callable[..., Any] = self.policy.get_action_and_value  # type: ignore[assignment]
        full, space = None, self.spec.single_action_space
        if isinstance(space, spaces.Discrete) and space.n <= MAX_LISTED_ACTIONS:
            every = [torch.full((rows,), action) for action in range(int(space.n))]
            full = torch.stack([call(batch.observations, state, done, action)[1] for action in every], -1)
        action, log_prob, entropy, value, state = call(batch.observations, state, done)
        return PolicyOutput(per_row(value, rows), log_prob, action, full, entropy), state

    def learn_segment(self, segment: Segment, starts: Tensor, state: State) -> PolicyOutput:
        steps, rows = reversed(segment.shape)

        def flat(field: Tensor) -> Tensor:
            return field.transpose(0, 1).flatten(0, 1)

        done = flat(starts).to(leaves(state)[0].dtype)
        _, log_prob, entropy, value, _ = self.policy.get_action_and_value(  # type: ignore[operator]
            flat(segment.observations), state, done, flat(segment.actions)
        )
        value, log_prob, entropy = (per_row(x, rows * steps).view(steps, rows).t() for x in (value, log_prob, entropy))
        return PolicyOutput(value, log_prob, segment.actions, entropy=entropy)


class Sb3Adapter(ExternalStateAdapter):
    """sb3-contrib's recurrent policy: acts in evaluation mode, learns in training mode, receives episode starts."""

    kind = "sb3"
    assumed_loop = "sb3-contrib's: carries the state, passes episode starts, and learns from the stored state"
    acts_in_training_mode = False

    def initial_state(self, rows: int) -> State:
        layers, _, size = self.policy.lstm_hidden_state_shape  # type: ignore[misc]
        h = torch.zeros(int(layers), rows, int(size), dtype=next(self.policy.parameters()).dtype)
        one: State = h if getattr(self.policy, "recurrent_layer_type", "lstm") == "rnn" else (h, h.clone())
        return import_module("sb3_contrib.common.recurrent.type_aliases").RNNStates(pi=one, vf=one)

    def act_step(self, batch: ActingBatch, starts: Tensor, state: State) -> tuple[PolicyOutput, State]:
        rows, episode_starts = len(starts), starts.to(next(self.policy.parameters()).dtype)
        observations = self._channels_first(batch.observations)
        actions, value, log_prob, after = self.policy(observations, state, episode_starts)
        distribution, _ = self.policy.get_distribution(observations, state.pi, episode_starts)  # type: ignore[operator]
        inner = distribution.distribution
        if isinstance(inner, list):  # several discrete actions at once
            full = torch.cat([choice.logits for choice in inner], -1)
        else:
            full = inner.logits if isinstance(inner, Categorical) else inner.mean
        return PolicyOutput(per_row(value, rows), log_prob, actions, full.reshape(rows, -1)), after

    def learn_segment(self, segment: Segment, starts: Tensor, state: State) -> PolicyOutput:
        rows, steps = segment.shape
        value, log_prob, entropy = self.policy.evaluate_actions(  # type: ignore[operator]
            self._channels_first(segment.observations.flatten(0, 1)),
            segment.actions.flatten(0, 1),
            state,
            starts.flatten().to(next(self.policy.parameters()).dtype),
        )
        entropy = None if entropy is None else entropy.reshape(rows, steps)
        return PolicyOutput(value.reshape(rows, steps), log_prob.reshape(rows, steps), segment.actions, entropy=entropy)

    def _channels_first(self, observations: Tensor) -> Tensor:
        """Images in the layout of sb3's wrapper."""
        expected, shape = self.policy.observation_space.shape, self.spec.single_observation_space.shape
        transposed = expected != shape and expected == (shape[-1], *shape[:-1])
        return observations.movedim(-1, 1) if transposed else observations
