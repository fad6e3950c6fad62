"""Adapters: other people's policies, unchanged, played the way the training loops they are written for play them."""

# B rows, T steps, A actions, N = B * T

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from engram.agent.metta_agent import MettaAgent
from engram.agent.policies.base import Policy
from engram.audit.foreign import Foreign, one_each
from engram.audit.plain import PlainModule
from engram.audit.states import State, leaves
from engram.audit.subject import Answer, Moment, Segment, Subject
from engram.audit.td import TdSubject
from engram.env.spec import EnvSpec
from engram.settings import UserError


class PufferLib(Foreign):
    """PufferLib's LSTM wrapper: `forward_eval(obs, state)` acts, `forward(obs, state)` learns, from no state.

    Its loop zeroes the state before each rollout, passes `done` along with it, and learns every segment from zero.
    """

    kind = "pufferlib"
    resets_between_rollouts = True

    def begin(self, rows: int) -> State:
        size, dtype = int(self.policy.hidden_size), next(self.policy.parameters()).dtype  # type: ignore[arg-type]
        return {"lstm_h": torch.zeros(rows, size, dtype=dtype), "lstm_c": torch.zeros(rows, size, dtype=dtype)}

    def step(self, moment: Moment, starts: Tensor, state: State) -> tuple[Answer, State]:
        rows = len(starts)
        told = {
            **state,
            "reward": torch.zeros(rows),
            "done": starts.float(),
            "env_id": slice(moment.first, moment.first + rows),
            "mask": torch.ones(rows, dtype=torch.bool),
        }
        logits, value = self.policy.forward_eval(moment.observations, told)  # type: ignore[operator]
        return self.drawn(logits, value, moment.noise), {name: told[name] for name in state}

    def replay(self, segment: Segment, starts: Tensor, state: State) -> Answer:
        told = {"action": segment.actions, "lstm_h": None, "lstm_c": None}
        logits, value = self.policy(segment.observations, told)
        return self.judged(logits, value, segment)

    def memory_of(self, rows: Tensor) -> Any:
        return None  # its loop keeps none


class CleanRL(Foreign):
    """CleanRL's agent: `get_action_and_value(x, lstm_state, done, action=None)`, time first when learning."""

    kind = "cleanrl"

    def step(self, moment: Moment, starts: Tensor, state: State) -> tuple[Answer, State]:
        rows, done = len(starts), starts.to(leaves(state)[0].dtype)
        ask: Callable[..., Any] = self.policy.get_action_and_value  # type: ignore[assignment]
        full = None
        if self.choices:
            every = [torch.full((rows,), choice) for choice in range(self.choices)]
            full = torch.stack([ask(moment.observations, state, done, action)[1] for action in every], -1)
        action, log_prob, entropy, value, state = ask(moment.observations, state, done)
        return Answer(one_each(value, rows), log_prob, action, full, entropy), state

    def replay(self, segment: Segment, starts: Tensor, state: State) -> Answer:
        steps, rows = reversed(segment.shape)

        def flat(field: Tensor) -> Tensor:
            return field.transpose(0, 1).flatten(0, 1)

        done = flat(starts).to(leaves(state)[0].dtype)
        _, log_prob, entropy, value, _ = self.policy.get_action_and_value(  # type: ignore[operator]
            flat(segment.observations), state, done, flat(segment.actions)
        )
        told = (one_each(x, rows * steps).view(steps, rows).t() for x in (value, log_prob, entropy))
        value, log_prob, entropy = told
        return Answer(value, log_prob, segment.actions, entropy=entropy)


class Sb3(Foreign):
    """sb3-contrib's recurrent policy: acts in evaluation mode, learns in training mode, told of episode starts."""

    kind = "sb3"
    acts_in_training_mode = False

    def seen(self, observations: Tensor) -> Tensor:
        """Images as sb3's own wrapper hands them over: channels first."""
        asked, shape = self.policy.observation_space.shape, self.spec.single_observation_space.shape
        turned = asked != shape and asked == (shape[-1], *shape[:-1])
        return observations.movedim(-1, 1) if turned else observations

    def begin(self, rows: int) -> State:
        layers, _, size = self.policy.lstm_hidden_state_shape  # type: ignore[misc]
        h = torch.zeros(int(layers), rows, int(size), dtype=next(self.policy.parameters()).dtype)
        one: State = h if getattr(self.policy, "recurrent_layer_type", "lstm") == "rnn" else (h, h.clone())
        return import_module("sb3_contrib.common.recurrent.type_aliases").RNNStates(pi=one, vf=one)

    def step(self, moment: Moment, starts: Tensor, state: State) -> tuple[Answer, State]:
        rows, episode_starts = len(starts), starts.to(next(self.policy.parameters()).dtype)
        observations = self.seen(moment.observations)
        actions, value, log_prob, after = self.policy(observations, state, episode_starts)
        distribution, _ = self.policy.get_distribution(observations, state.pi, episode_starts)  # type: ignore[operator]
        inner = distribution.distribution
        if isinstance(inner, list):  # several choices at once
            full = torch.cat([choice.logits for choice in inner], -1)
        else:
            full = inner.logits if isinstance(inner, Categorical) else inner.mean
        return Answer(one_each(value, rows), log_prob, actions, full.reshape(rows, -1)), after

    def replay(self, segment: Segment, starts: Tensor, state: State) -> Answer:
        rows, steps = segment.shape
        value, log_prob, entropy = self.policy.evaluate_actions(  # type: ignore[operator]
            self.seen(segment.observations.flatten(0, 1)),
            segment.actions.flatten(0, 1),
            state,
            starts.flatten().to(next(self.policy.parameters()).dtype),
        )
        entropy = None if entropy is None else entropy.reshape(rows, steps)
        return Answer(value.reshape(rows, steps), log_prob.reshape(rows, steps), segment.actions, entropy=entropy)


ADAPTERS: dict[str, type[Subject]] = {
    "td": TdSubject,
    "module": PlainModule,
    "pufferlib": PufferLib,
    "cleanrl": CleanRL,
    "sb3": Sb3,
}
TELLTALE = {"get_action_and_value": "cleanrl", "forward_eval": "pufferlib", "evaluate_actions": "sb3"}


def adapt(policy: Any, spec: EnvSpec, adapter: str = "auto") -> Subject:
    """The policy as the audit plays it. `auto` recognises it by its methods."""
    if isinstance(policy, MettaAgent):
        policy = policy.policy
    if not isinstance(policy, nn.Module) and isinstance(getattr(policy, "policy", None), nn.Module):
        policy = policy.policy  # an algorithm of sb3's, with the policy in it
    if not isinstance(policy, nn.Module):
        raise UserError(f"a {type(policy).__name__} cannot be audited: a policy is a torch.nn.Module")
    if adapter != "auto" and adapter not in ADAPTERS:
        raise UserError(f"adapter: there is no '{adapter}', only {', '.join(ADAPTERS)} and auto")
    return ADAPTERS[recognise(policy) if adapter == "auto" else adapter](policy.cpu(), spec)


def recognise(policy: nn.Module) -> str:
    if isinstance(policy, Policy):
        return "td"
    for method, kind in TELLTALE.items():
        if callable(getattr(policy, method, None)):
            return kind
    parameters = list(inspect.signature(policy.forward).parameters)
    return "td" if parameters[:1] == ["td"] or "action" in parameters else "module"
