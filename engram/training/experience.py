"""Experience: what was lived in one rollout, in preallocated segments, with the memory each segment began with."""

# S segments, T steps, R rows, L layers, Z floats per layer. Segment s holds steps [k*T, (k+1)*T) of row r, s = k*R + r.

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from engram.training.advantage import Advantages, vtrace
from engram.training.settings import PPO


class Minibatch(NamedTuple):
    segments: Tensor  # [B] long: which segments these are
    data: TensorDict  # [B, T]: the stored fields that are learned from
    memory: TensorDict  # [B]: memory at each segment's start, by name
    advantages: Tensor  # [B, T]
    weights: Tensor  # [B, T]: importance weights; zero where an agent was not there and where memory only warms up
    value_unit: Tensor | float = 1.0  # what the errors of values are measured in

    @property
    def size(self) -> Tensor:
        """How many steps there are to learn from; at least 1."""
        return self.weights.count_nonzero().clamp(min=1)

    def parts(self, number: int) -> list["Minibatch"]:
        """Its segments in so many parts of about equal size, or one by one if there are fewer."""
        if number == 1:
            return [self]
        size = -(-len(self.segments) // number)
        places = [slice(start, start + size) for start in range(0, len(self.segments), size)]
        fields = {name: field for name, field in self._asdict().items() if name != "value_unit"}
        return [self._replace(**{name: field[place] for name, field in fields.items()}) for place in places]


class Experience:
    """Preallocated `[segments, T]` tensors. Rows fill independently, in any order and in slices of any size.

    >>> import gymnasium
    >>> from engram import Fast, MettaAgent
    >>> env = gymnasium.make_vec("CartPole-v1")
    >>> spec = MettaAgent(env, Fast(env)).get_agent_experience_spec()
    >>> experience = Experience(4, batch_size=256, bptt_horizon=64, minibatch_size=128, experience_spec=spec)

    Fields with the policy's names (`experience_spec`) and the loss's. What is stored at step t is what arrived with the
    observation at t: the reward of the action before, and whether that action ended the episode.
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
        self.buffer = TensorDict(
            {
                name: torch.zeros(*shape, *field.shape, dtype=field.dtype, device=device)
                for name, field in experience_spec.items()
            },
            batch_size=shape,
            device=device,
        )
        for name in ("rewards", "act_log_prob", "values", "returns", "ratio", "final_values"):
            self.buffer[name] = torch.zeros(shape, device=device)
        for name in ("dones", "truncateds", "alive"):
            self.buffer[name] = torch.zeros(shape, dtype=torch.bool, device=device)
        # What comes with a step, step by step; the rest is computed when all of them are there.
        lived = ((name, field) for name, field in self.buffer.items() if name not in ("returns", "ratio"))
        self._lived = [(name, field.unbind(1)) for name, field in lived]
        self.memory = TensorDict(
            {name: torch.zeros(self.segments, *s, device=device) for name, s in (memory_shapes or {}).items()},
            batch_size=[self.segments],
            device=device,
        )
        # What follows the last step of each row: its reward, its flags and the value of the observation after it.
        self.tail = TensorDict(
            {name: self.buffer[name].new_zeros(total_agents) for name in TAIL_FIELDS}, [total_agents], device=device
        )
        self.position = np.zeros(total_agents, np.int64)  # steps stored so far, per row
        self._tails = np.zeros(total_agents, bool)

    @property
    def full(self) -> bool:
        return bool(self._tails.all())

    def begin(self) -> None:
        """Make ready for the next rollout. Nothing is freed."""
        self.position[:] = 0
        self._tails[:] = False
        self.buffer["ratio"].fill_(1.0)

    def step_of(self, env_id: slice) -> int:
        """How many steps these rows have; they must have come the same way."""
        position = self.position[env_id].tolist()
        if position.count(position[0]) != len(position):
            raise ValueError(f"rows {env_id.start} to {env_id.stop - 1} have different numbers of steps: {position}")
        return position[0]

    def store(self, td: TensorDictBase, env_id: slice) -> None:
        """Keep one step of some rows: the fields this buffer has, whatever else the td carries."""
        step = self.step_of(env_id)
        if step >= self.steps_per_row:
            raise ValueError(f"rows {env_id.start} to {env_id.stop - 1} are full; call begin() first")
        segments, place = self._segments_of(env_id, step), step % self.horizon
        for name, steps in self._lived:
            value = td.get(name, None)
            if value is not None:
                steps[place][segments] = value
        self.position[env_id] += 1

    def store_memory(self, memory: Mapping[str, Tensor], env_id: slice) -> None:
        """The memory these rows have before the segment that begins now."""
        segments = self._segments_of(env_id, self.step_of(env_id))
        for name, value in memory.items():
            self.memory.get(name)[segments] = value

    def store_tail(self, td: TensorDictBase, env_id: slice) -> None:
        """What came after the last step of these rows: used to judge it, not learned from."""
        for name in TAIL_FIELDS:
            self.tail.get(name)[env_id] = td[name]
        self._tails[env_id] = True

    def advantages(self, settings: PPO) -> Advantages:
        """Advantages and returns [S, T] of every step, the last of each row judged by what followed it."""
        after = {name: torch.cat([self._by_row(name)[:, 1:], self.tail[name].unsqueeze(1)], 1) for name in TAIL_FIELDS}
        ends = after["dones"] | after["truncateds"]
        next_values = torch.where(ends, after["final_values"], after["values"])
        result = vtrace(
            self._by_row("values"),
            next_values,
            after["rewards"],
            ends,
            self._by_row("ratio"),
            settings.gamma,
            settings.gae_lambda,
            settings.rho_clip,
            settings.c_clip,
        )
        advantages, returns = (self._by_segment(x) for x in result)
        self.buffer["returns"] = returns
        return Advantages(advantages, returns)

    def minibatches(
        self, advantages: Tensor, generator: torch.Generator, prio_alpha: float = 0.0, prio_beta: float = 1.0
    ) -> Iterator[Minibatch]:
        """Segments in random order, each once; with `prio_alpha` > 0 those with large advantages more often instead."""
        count = self.segments // self.minibatch_segments
        if prio_alpha == 0:
            order = torch.randperm(self.segments, generator=generator, device=self.device)
            for segments in order.view(count, -1):
                yield self._minibatch(segments, advantages, None)
            return
        priority = (advantages * self.buffer["alive"]).abs().sum(1).pow(prio_alpha).clamp(min=1e-6)
        probability = priority / priority.sum()
        for _ in range(count):
            segments = torch.multinomial(probability, self.minibatch_segments, generator=generator)
            importance = (self.segments * probability[segments]).pow(-prio_beta)
            yield self._minibatch(segments, advantages, importance / importance.max())

    def update_ratio(self, minibatch: Minibatch, log_prob: Tensor) -> None:
        """How likely the actions of these segments are now, relative to when they were taken."""
        self.buffer["ratio"][minibatch.segments] = (log_prob.detach() - minibatch.data["act_log_prob"]).exp()

    def _minibatch(self, segments: Tensor, advantages: Tensor, importance: Tensor | None) -> Minibatch:
        data = _some(segments, self.buffer, without=JUDGED_BY)
        weights = data["alive"].float()
        if self.burn_in:
            weights[:, : self.burn_in] = 0
        if importance is not None:
            weights = weights * importance.unsqueeze(1)
        return Minibatch(segments, data, _some(segments, self.memory), advantages[segments], weights)

    def _segments_of(self, env_id: slice, step: int) -> slice:
        offset = step // self.horizon * self.rows
        return slice(env_id.start + offset, env_id.stop + offset)

    def _by_row(self, name: str) -> Tensor:
        return self.buffer[name].view(-1, self.rows, self.horizon).transpose(0, 1).reshape(self.rows, -1)

    def _by_segment(self, x_RT: Tensor) -> Tensor:
        return x_RT.view(self.rows, -1, self.horizon).transpose(0, 1).reshape(self.segments, self.horizon)


JUDGED_BY = ("rewards", "ratio", "final_values")  # what advantages come from: nobody learns from it directly
TAIL_FIELDS = ("rewards", "dones", "truncateds", "values", "final_values")


def _some(rows: Tensor, of: TensorDictBase, without: Sequence[str] = ()) -> TensorDict:
    """`of[rows]`, in half the time."""
    fields = {name: field.index_select(0, rows) for name, field in of.items() if name not in without}  # type: ignore[union-attr]
    return TensorDict(fields, batch_size=[len(rows), *of.batch_size[1:]])


def _check_sizes(rows: int, batch_size: int, horizon: int, minibatch_size: int) -> None:
    """Sizes that do not divide are an error that names the nearest ones that do."""
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
