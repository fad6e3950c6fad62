"""LSTMWrapper: the base class of recurrent policies. A subclass encodes and decodes; memory is handled here."""

# B rows, T steps, N = B * T, I input size, L layers, H hidden size

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.nn import functional as F

from engram.agent.asymmetric_critic import CRITIC_INPUTS, AsymmetricCritic, actor_spec
from engram.agent.event_counts import EventCounts
from engram.agent.observations import Observations
from engram.agent.policies.base import Policy, call_shape, check_features, check_pair, check_shortcut, warn_of_unused
from engram.agent.previous_step import PreviousStep, split_previous
from engram.agent.recurrent import make_core
from engram.agent.recurrent.core import Core
from engram.agent.recurrent.lstm import LSTM
from engram.agent.recurrent.store import MemoryStore, episode_starts, read_memory, run_with_memory
from engram.settings import UserError

Memory = tuple[dict[int, Tensor], dict[int, Tensor]]  # h [L, H] and c [L, H], by environment id


class LSTMWrapper(Policy):
    """A policy with memory: `encode_observations`, a recurrent core, `decode_actions`.

    The two methods are the subclass's own, or those of the module given as `policy`.

    >>> import gymnasium
    >>> class Small(LSTMWrapper):
    ...     def __init__(self, env, **kwargs):
    ...         super().__init__(env, input_size=4, hidden_size=32, num_layers=1, **kwargs)
    ...         self.actor = torch.nn.Linear(32, self.action_space.logits)
    ...         self.critic = torch.nn.Linear(32, 1)
    ...
    ...     def encode_observations(self, observations):
    ...         return observations
    ...
    ...     def decode_actions(self, hidden):
    ...         return self.actor(hidden), self.critic(hidden)
    >>> policy = Small(gymnasium.make_vec("CartPole-v1"))
    """

    core: Core
    memory: MemoryStore
    lstm: "TorchStyleCore"

    def __init__(
        self,
        env: object,
        policy: nn.Module | None = None,
        input_size: int = 128,
        hidden_size: int = 128,
        num_layers: int = 2,
        clip_range: float = 0,
        analyze_weights_interval: int = 300,
        core: str = "lstm",
        window: int | None = None,
        previous: Sequence[str] | None = None,
        critic_only: Sequence[str] = (),
        critic_memory: bool = False,
        counts: bool = False,
        **kwargs: Any,
    ) -> None:
        """`previous`: inputs beside the observation, "action" and "reward"; None: the action, if it is a part of the
        observation. `critic_only`: parts of the observation that only the critic sees; with `critic_memory` it has
        a core of its own. `encode_observations` gets `self.actor_spec`: the observation without those parts. `counts`:
        how often each symbol has occurred in the episode is appended to the core's outputs."""
        super().__init__(env, clip_range, analyze_weights_interval)
        self.policy = policy
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        spec, self.previous_inputs, self.critic_only = self.env_spec, previous, list(critic_only)
        previous_inputs, self._excluded_parts = split_previous(previous, spec)
        self.previous = PreviousStep(previous_inputs, spec, self.action_space) if previous_inputs else None
        self.actor_spec = actor_spec(spec, critic_only).without_parts(self._excluded_parts)
        inputs = input_size + (self.previous.size if self.previous else 0)
        self._set_core(make_core(core, inputs, hidden_size, num_layers, window))
        self.event_counts = EventCounts(self.actor_spec) if counts else None
        self.output_size = hidden_size + (self.event_counts.size if self.event_counts else 0)
        self.asymmetric_critic = None
        if critic_only:
            critic_core = make_core(core, CRITIC_INPUTS, hidden_size, 1, window) if critic_memory else None
            seen = spec.without_parts(self._excluded_parts)
            self.asymmetric_critic = AsymmetricCritic(seen, self.output_size, critic_core)
        self.unused_arguments = kwargs
        warn_of_unused(type(self), kwargs)

    def encode_observations(self, observations: Observations) -> Tensor | tuple[Tensor, Tensor]:
        """Observations [N, ...] to features [N, input_size]. Parts are read by name: `observations["image"]`.

        May return a pair: features, and logits that are added to those of `decode_actions`.
        """
        return self._method_of_policy("encode_observations")(observations)

    def decode_actions(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The core's outputs [N, output_size] to logits [N, action_space.logits] and values [N] or [N, 1]."""
        return self._method_of_policy("decode_actions")(hidden)

    def forward(self, td: TensorDictBase, state: Any = None, action: Tensor | None = None) -> TensorDictBase:
        rows, steps = call_shape(td, action)
        observations = td["env_obs"].flatten(0, td.batch_dims - 1)
        if self._excluded_parts:
            observations = observations.exclude(*self._excluded_parts)
        actor_observations = observations.exclude(*self.critic_only) if self.critic_only else observations
        encoded = self.encode_observations(actor_observations)
        extra = 0 if self.previous is None else self.previous.size
        features, shortcut = check_features(type(self).__name__, encoded, rows * steps, self.core.input_size - extra)
        if self.previous is not None:
            features = self.previous.append_to(features, td, rows, steps)
        hidden = run_with_memory(self.core, self.memory, "lstm", features, td, rows, steps)
        if self.event_counts is not None:
            hidden = torch.cat([hidden, self.event_counts(actor_observations, td, rows, steps)], -1)
        logits, value = check_pair(type(self).__name__, self.decode_actions(hidden))
        if shortcut is not None:
            check_shortcut(type(self).__name__, shortcut, logits)
            logits = logits + shortcut
        if self.asymmetric_critic is not None:
            value = self.asymmetric_critic(observations, hidden, td, (rows, steps))
        if action is None:
            return self.forward_inference(td, logits, value)
        return self.forward_training(td, action, logits, value)

    # The memory interface.

    def stores(self) -> Mapping[str, MemoryStore]:
        critic = None if self.asymmetric_critic is None else self.asymmetric_critic.memory
        counts = None if self.event_counts is None else self.event_counts.memory
        stores = {"lstm": self.memory, "critic": critic, "counts": counts}
        return {name: store for name, store in stores.items() if store is not None}

    def get_memory(self) -> Memory:
        """Copies of h [L, H] and c [L, H], each by environment id. A critic's core and counts add layers."""
        width = self.core.memory_shape[1]
        (h, c), *others = (split_memory(store, self.core.hidden_size, width) for store in self.stores().values())
        for more_h, more_c in others:
            h = {row: torch.cat([value, more_h[row]]) for row, value in h.items()}
            c = {row: torch.cat([value, more_c[row]]) for row, value in c.items()}
        return h, c

    def set_memory(self, memory: tuple[Mapping[int, Tensor], Mapping[int, Tensor]]) -> None:
        rows, first = join_memory(memory), 0
        for store in self.stores().values():
            shape = store.memory_NLS.shape[1:]
            layers = as_layers(store.memory_NLS[:0], self.core.memory_shape[1]).shape[1]
            own = {row: value[first : first + layers].flatten() for row, value in rows.items()}
            store.load({row: value[: shape.numel()].view(shape) for row, value in own.items()})
            first += layers

    def value_output(self) -> nn.Linear | None:
        return self.value_layer() if self.asymmetric_critic is None else self.asymmetric_critic.head.value

    # For policies that override `forward`: `self.lstm(inputs, (h, c))` between these two calls.

    def _manage_lstm_state(
        self, td: TensorDictBase, B: int, TT: int, device: torch.device | str
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """h [L, B, H], c [L, B, H] and the ids to store the next ones under; None: do not store them.

        The next call of `self.lstm` clears memory where episodes start inside the segment.
        """
        memory, ids = read_memory(self.memory, "lstm", td, B, TT)
        starts = episode_starts(td, B, TT)
        self.lstm.pending_starts = starts
        self.segment_shape = (B, TT)
        h, c = self.lstm.unpack(memory.masked_fill(starts[0].view(-1, 1, 1), 0).to(device))
        if isinstance(ids, slice):
            ids = torch.arange(ids.start, ids.stop, device=device)
        return h.contiguous(), c.contiguous(), ids

    def _store_lstm_state(self, lstm_h: Tensor, lstm_c: Tensor, env_id: Tensor | int | None) -> None:
        """Store the memory of these rows, detached."""
        if env_id is None:
            return
        if isinstance(env_id, int):
            env_id = torch.arange(env_id, env_id + lstm_h.shape[1], device=lstm_h.device)
        self.memory.write(env_id, self.lstm.pack(lstm_h, lstm_c))

    def __setattr__(self, name: str, value: Any) -> None:
        # A subclass may assign its own nn.LSTM to `self.lstm`: it keeps its weights and gets episode boundaries.
        if name == "lstm" and isinstance(value, nn.LSTM):
            self._set_core(LSTM.from_torch(value))
        else:
            super().__setattr__(name, value)

    def _set_core(self, core: Core) -> None:
        self.core = core
        self.memory = MemoryStore(*core.memory_shape)
        self.lstm = TorchStyleCore(core)

    def _method_of_policy(self, method: str) -> Callable[[Any], Any]:
        found = getattr(self.policy, method, None)
        if found is None:
            owner = self if self.policy is None else self.policy
            raise UserError(f"{type(owner).__name__} must define {method}, as engram/agent/policies/example.py does")
        return found


class TorchStyleCore:
    """A core with the call of `torch.nn.LSTM`, `lstm(inputs, (h, c)) -> (outputs, (h, c))`.

    That call has no place for episode starts, so `_manage_lstm_state` leaves them here for the call that follows.
    Other attributes are the core's.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self.pending_starts: Tensor | None = None  # [T, B]

    def __call__(
        self, inputs_TBI: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        starts, self.pending_starts = self.pending_starts, None
        if starts is None:
            starts = torch.zeros(inputs_TBI.shape[:2], dtype=torch.bool, device=inputs_TBI.device)
        memory = self._core.initial_memory(inputs_TBI.shape[1]) if state is None else self.pack(*state)
        outputs, memory = self._core(inputs_TBI, memory, starts)
        return outputs, self.unpack(memory)

    def pack(self, h_LBH: Tensor, c_LBH: Tensor) -> Tensor:
        return torch.cat([h_LBH.transpose(0, 1), c_LBH.transpose(0, 1)], dim=-1)

    def unpack(self, memory_BLS: Tensor) -> tuple[Tensor, Tensor]:
        h, c = memory_BLS.transpose(0, 1).tensor_split([self._core.hidden_size], dim=-1)
        return h, c  # c has size 0 for a core without a cell

    def __getattr__(self, name: str) -> Any:
        if name == "_core":  # not set yet while a copy is being made
            raise AttributeError(name)
        return getattr(self._core, name)


def as_layers(memory_NLS: Tensor, width: int) -> Tensor:
    """Memory of any shape per row as layers of `width` floats, the last one padded with zeros."""
    flat = memory_NLS.flatten(1)
    return F.pad(flat, (0, -flat.shape[1] % width)).unflatten(1, (-1, width))


def split_memory(store: MemoryStore, hidden_size: int, width: int | None = None) -> Memory:
    """The content of a store as the pair (h, c), each a dict from environment id to a copy of that row's [L, ...].

    `width`: of h and c together, if not the store's own.
    """
    ids = store.known_ids()
    rows = as_layers(store.memory_NLS.detach()[ids].clone(), width or store.memory_NLS.shape[2])
    h, c = rows[..., :hidden_size], rows[..., hidden_size:]
    return dict(zip(ids, h, strict=True)), dict(zip(ids, c, strict=True))


def join_memory(memory: tuple[Mapping[int, Tensor], Mapping[int, Tensor]]) -> dict[int, Tensor]:
    """The inverse of `split_memory`. A value may also be [L, B, ...]: then its key is the id of the first of B rows."""
    h, c = memory
    if h.keys() != c.keys():
        raise ValueError(f"h and c must have the same environment ids; only one has {sorted(h.keys() ^ c.keys())}")
    rows: dict[int, Tensor] = {}
    for first, h_value in h.items():
        both = torch.cat([h_value, c[first]], dim=-1)
        if both.dim() == 2:
            rows[first] = both
        else:
            rows.update((first + i, row) for i, row in enumerate(both.unbind(1)))
    return rows
