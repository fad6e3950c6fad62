"""Experience: one rollout in preallocated segments, with the memory at the start of each segment."""

# S segments, T steps, R rows. Segment k * R + r holds steps [k * T, (k + 1) * T) of row r.

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from engram.agent.previous_step import PREVIOUS

if TYPE_CHECKING:
    from engram.training.advantage import Advantages

POLICY_FIELDS = ("env_obs", "dones", "truncateds", "starts", *PREVIOUS.values())  # what a policy reads, if stored
FLOATS = ("rewards", "act_log_prob", "values", "returns", "ratio", "final_values")
FLAGS = ("dones", "truncateds", "starts", "alive", "masked")
BOOTSTRAP = ("rewards", "dones", "truncateds", "values", "final_values")  # fields stored of the step after the last
NOT_IN_MINIBATCHES = ("rewards", "ratio", "final_values")  # only advantages need these
NOT_IN_TDS = ("returns", "ratio", "masked")  # computed here, not by acting


class Minibatch(NamedTuple):
    segments: Tensor  # [B] long: indices of the segments
    data: TensorDict  # [B, T]: the stored fields that the update needs
    memory: TensorDict  # [B]: memory at each segment's start, by name
    advantages: Tensor  # [B, T]
    weights: Tensor  # [B, T]: importance weights; 0 for agents that are not alive, masked and burn-in steps
    value_unit: Tensor | float = 1.0

    @property
    def size(self) -> Tensor:
        """Number of steps with a weight; at least 1."""
        return self.weights.count_nonzero().clamp(min=1)

    def split(self, number: int) -> list["Minibatch"]:
        """The minibatch in `number` parts with about equally many segments; fewer parts if it has fewer segments."""
        if number == 1:
            return [self]
        size = -(-len(self.segments) // number)
        parts = [slice(start, start + size) for start in range(0, len(self.segments), size)]
        fields = {name: field for name, field in self._asdict().items() if name != "value_unit"}
        return [self._replace(**{name: field[part] for name, field in fields.items()}) for part in parts]


class FollowingSteps(NamedTuple):
    """The results of each step's action, [R, steps per row] each."""

    rewards: Tensor
    ends: Tensor  # the action ended the episode
    values: Tensor  # of the next observation
    final_values: Tensor  # of a truncated episode's true final observation; 0 elsewhere


class Experience:
    """Preallocated `[segments, T]` tensors. Rows fill independently, in any order and in slices of any size.

    >>> import gymnasium
    >>> from engram import Fast, MettaAgent
    >>> env = gymnasium.make_vec("CartPole-v1")
    >>> spec = MettaAgent(env, Fast(env)).get_agent_experience_spec()
    >>> experience = Experience(4, batch_size=256, bptt_horizon=64, minibatch_size=128, experience_spec=spec)

    Fields are those of the policy (`experience_spec`) and of the loss. Step t holds what arrived with the observation
    at t: the reward of the previous action, and whether that action ended the episode.
    """

    def __init__(
        self,
        total_agents: int,
        batch_size: int,
        bptt_horizon: int,
        minibatch_size: int,
        experience_spec: TensorDictBase,
        memory_shapes: Mapping[str, tuple[int, ...]] | None = None,
        device: torch.device | str = "cpu",
        burn_in: int = 0,
    ) -> None:
        _check_sizes(total_agents, batch_size, bptt_horizon, minibatch_size)
        self.rows, self.horizon, self.burn_in = total_agents, bptt_horizon, burn_in
        self.batch_size = batch_size
        self.segments = batch_size // bptt_horizon
        self.minibatch_segments = minibatch_size // bptt_horizon
        self.steps_per_row = self.segments // total_agents * bptt_horizon
        self.device = torch.device(device)
        shape = (self.segments, self.horizon)
        fields = {
            name: torch.zeros(*shape, *field.shape, dtype=field.dtype, device=device)
            for name, field in experience_spec.items()
        }
        fields |= {name: torch.zeros(shape, device=device) for name in FLOATS}
        fields |= {name: torch.zeros(shape, dtype=torch.bool, device=device) for name in FLAGS}
        self.buffer = TensorDict(fields, batch_size=shape, device=device)
        # Views of each step, made once: indexing both dimensions in every store costs more.
        self._steps = [(name, field.unbind(1)) for name, field in fields.items() if name not in NOT_IN_TDS]
        self.memory = TensorDict(
            {name: torch.zeros(self.segments, *s, device=device) for name, s in (memory_shapes or {}).items()},
            batch_size=[self.segments],
            device=device,
        )
        self.bootstrap = TensorDict(
            {name: fields[name].new_zeros(total_agents) for name in BOOTSTRAP}, [total_agents], device=device
        )
        self.position = np.zeros(total_agents, np.int64)  # steps stored so far, per row
        self._has_bootstrap = np.zeros(total_agents, bool)

    @property
    def full(self) -> bool:
        return bool(self._has_bootstrap.all())

    def begin(self) -> None:
        """Prepare for the next rollout, in the same tensors."""
        self.position[:] = 0
        self._has_bootstrap[:] = False
        self.buffer["ratio"].fill_(1.0)
        self.buffer["masked"].fill_(False)

    def step_of(self, env_id: slice) -> int:
        """The number of steps stored for these rows; an error if it differs between them."""
        position = self.position[env_id].tolist()
        if position.count(position[0]) != len(position):
            raise ValueError(f"rows {env_id.start} to {env_id.stop - 1} have different numbers of steps: {position}")
        return position[0]

    def store(self, td: TensorDictBase, env_id: slice) -> None:
        """Store one step of some rows: the fields of the td that are also in the buffer."""
        step = self.step_of(env_id)
        if step >= self.steps_per_row:
            raise ValueError(f"rows {env_id.start} to {env_id.stop - 1} are full; call begin() first")
        segments, t = self._segments_of(env_id, step), step % self.horizon
        for name, steps in self._steps:
            value = td.get(name, None)
            if value is not None:
                steps[t][segments] = value
        self.position[env_id] += 1

    def mask_unfinished(self, interrupted: Tensor, env_id: slice) -> None:
        """Mask the steps of an interrupted episode within its current segment, in the interrupted rows [R].

        The outcome of the last action is unknown, so these steps have no advantage. Call this before storing the next
        step.
        """
        step = self.step_of(env_id)
        if step == 0:
            return  # no step of the episode is in this rollout
        segments, steps = self._segments_of(env_id, step - 1), (step - 1) % self.horizon + 1
        starts = self.buffer["starts"][segments, :steps].int()
        later_starts = starts.flip(1).cumsum(1).flip(1) - starts
        self.buffer["masked"][segments, :steps] |= interrupted.unsqueeze(1) & (later_starts == 0)

    def store_memory(self, memory: Mapping[str, Tensor], env_id: slice) -> None:
        """Store the memory of these rows before the segment that begins now."""
        segments = self._segments_of(env_id, self.step_of(env_id))
        for name, value in memory.items():
            self.memory.get(name)[segments] = value

    def store_bootstrap(self, td: TensorDictBase, env_id: slice) -> None:
        """Store the reward of these rows' last step, and the value to bootstrap from."""
        for name in BOOTSTRAP:
            self.bootstrap.get(name)[env_id] = td[name]
        self._has_bootstrap[env_id] = True

    def store_returns(self, returns_RT: Tensor) -> Tensor:
        """Store the returns of all steps, [R, steps per row], and return them as [S, T]."""
        self.buffer["returns"] = self.by_segment(returns_RT)
        return self.buffer["returns"]

    def following_steps(self) -> FollowingSteps:
        after = {
            name: torch.cat([self.by_row(name)[:, 1:], self.bootstrap[name].unsqueeze(1)], 1) for name in BOOTSTRAP
        }
        ends = after["dones"] | after["truncateds"]
        return FollowingSteps(after["rewards"], ends, after["values"], after["final_values"])

    def minibatches(
        self, advantages: "Advantages", generator: torch.Generator, prio_alpha: float = 0.0, prio_beta: float = 1.0
    ) -> Iterator[Minibatch]:
        """Segments in random order, each once. With `prio_alpha` > 0, sampled in proportion to their advantages."""
        count = self.segments // self.minibatch_segments
        if prio_alpha == 0:
            order = torch.randperm(self.segments, generator=generator, device=self.device)
            for segments in order.view(count, -1):
                yield self._minibatch(segments, advantages, None)
            return
        size = (advantages.advantages * learnable(self.buffer)).abs().sum(1)
        priority = size.pow(prio_alpha).clamp(min=1e-6)
        probability = priority / priority.sum()
        for _ in range(count):
            segments = torch.multinomial(probability, self.minibatch_segments, generator=generator)
            importance = (self.segments * probability[segments]).pow(-prio_beta)
            yield self._minibatch(segments, advantages, importance / importance.max())

    def update_ratio(self, minibatch: Minibatch, log_prob: Tensor) -> None:
        """Store the ratio of the current policy's action probabilities to those of the rollout."""
        self.buffer["ratio"][minibatch.segments] = (log_prob.detach() - minibatch.data["act_log_prob"]).exp()

    def by_row(self, name: str) -> Tensor:
        """A field as [R, steps per row]."""
        return self.buffer[name].view(-1, self.rows, self.horizon).transpose(0, 1).reshape(self.rows, -1)

    def by_segment(self, x_RT: Tensor) -> Tensor:
        """[R, steps per row] as [S, T]."""
        return x_RT.view(self.rows, -1, self.horizon).transpose(0, 1).reshape(self.segments, self.horizon)

    def _minibatch(self, segments: Tensor, advantages: "Advantages", importance: Tensor | None) -> Minibatch:
        data = _select(self.buffer, segments, without=NOT_IN_MINIBATCHES)
        weights = learnable(data).float()
        if self.burn_in:
            weights[:, : self.burn_in] = 0
        if importance is not None:
            weights = weights * importance.unsqueeze(1)
        return Minibatch(
            segments,
            data,
            _select(self.memory, segments),
            advantages.advantages[segments],
            weights,
            advantages.value_unit,
        )

    def _segments_of(self, env_id: slice, step: int) -> slice:
        offset = step // self.horizon * self.rows
        return slice(env_id.start + offset, env_id.stop + offset)


def learnable(steps: TensorDictBase) -> Tensor:
    """The steps to learn from: those of agents that are alive, except masked ones.

    A step is masked if its environment failed later in the same segment and episode. Masked steps can be replayed, but
    have no advantage and no return, because the outcome of the last action is unknown.
    """
    return steps["alive"] & ~steps["masked"]


def _select(source: TensorDictBase, segments: Tensor, without: Sequence[str] = ()) -> TensorDict:
    """`source[segments]`, in half the time."""
    fields = {name: field.index_select(0, segments) for name, field in source.items() if name not in without}  # type: ignore[union-attr]
    return TensorDict(fields, batch_size=[len(segments), *source.batch_size[1:]])


def _check_sizes(rows: int, batch_size: int, horizon: int, minibatch_size: int) -> None:
    """Raise for sizes that do not divide, and name the nearest ones that do."""
    for name, size, unit, of in (
        ("batch_size", batch_size, rows * horizon, f"total_agents * bptt_horizon ({rows} * {horizon})"),
        ("minibatch_size", minibatch_size, horizon, f"bptt_horizon ({horizon})"),
    ):
        if size < unit or size % unit:
            below = max(size // unit, 1) * unit
            tries = f"{below}" if below >= size else f"{below} or {below + unit}"
            raise ValueError(f"{name}: {size} is not a multiple of {of}: try {tries}")
    if batch_size % minibatch_size:
        divisors = [n * horizon for n in range(1, batch_size // horizon + 1) if batch_size % (n * horizon) == 0]
        near = sorted(divisors, key=lambda n: abs(n - minibatch_size))[:2]
        raise ValueError(
            f"minibatch_size: {minibatch_size} does not divide batch_size ({batch_size}): "
            f"try {' or '.join(map(str, sorted(near)))}"
        )
