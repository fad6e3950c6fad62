"""Event counts: how often each combination of symbols and previous action has occurred in the episode so far.

Also how often the current symbols have. A memory that is exact without training: cells already tried, cards already
seen, rewards of each arm of a bandit.
"""

# B rows, T steps, N = B * T, E combinations, S values of all symbols, K = E + S events, P pairs of symbols, V values of
# all pairs

import math

import torch
from gymnasium import spaces
from tensordict import TensorDictBase
from torch import Tensor, nn

from engram.agent.encoders.parts import OneHot
from engram.agent.observations import Observations
from engram.agent.recurrent.core import clear
from engram.agent.recurrent.store import MemoryStore, run_with_memory
from engram.env.parts import PREVIOUS_ACTION, Part
from engram.env.spec import EnvSpec
from engram.settings import UserError

MAX_EVENTS = 512
MAX_PAIRS = 16
MAX_COUNT = 31  # of a current symbol; higher counts are not told apart
SCALE = 4.0  # so that the count of a rare event varies about as much as a normalised observation


class EventCounts(nn.Module):
    """Counts events: "a miss in this cell", "a reward from this arm", "this card".

    An event is a combination of the values of all symbols and the previous action, if there are at most 512, or one
    value of one symbol. For each pair of symbols with as many values, the output has the count in the second of the
    first's current value: how often was the card dealt that is asked for?
    """

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        parts = counted_parts(spec)
        if not parts:
            raise UserError(
                f"py_agent.counts: {spec.name} has no symbols outside of grids, or they have too many values: only a "
                "few symbols of Discrete and MultiDiscrete observations can be counted"
            )
        self.names, self.cardinalities = [part.name for part in parts], cardinalities(parts)
        self.readers = nn.ModuleList(OneHot(part) if part.kind == "symbols" else nn.Identity() for part in parts)
        self.combinations = number_of_combinations(parts)
        self.current = CurrentCounts(cardinalities([part for part in parts if part.kind == "symbols"]))
        self.size = self.combinations + self.current.size
        self.memory = MemoryStore(1, self.combinations + self.current.values)

    def forward(
        self, observations: Observations, td: TensorDictBase, rows: int, steps: int, name: str = "counts"
    ) -> Tensor:
        """[N, size]: the logarithm of 1 + the count of each combination, less their mean; counts of current symbols."""
        one_hots = self.one_hots(observations)
        values_NS = one_hots[:, : self.current.values]
        events_NK = torch.cat([self.combine(one_hots), values_NS], -1)
        counts_NK = run_with_memory(count_core, self.memory, name, events_NK, td, rows, steps).clamp(min=0)
        logs_NE = counts_NK[:, : self.combinations].log1p()
        current = self.current(values_NS, counts_NK[:, self.combinations :])
        return SCALE * torch.cat([logs_NE - logs_NE.mean(-1, keepdim=True), current], -1)

    def one_hots(self, observations: Observations) -> Tensor:
        """The value of each symbol, then the previous action, which is all 0 at an episode's start."""
        one_hots = []
        for name, reader in zip(self.names, self.readers, strict=True):
            part = observations if isinstance(observations, Tensor) else observations[name]
            one_hots.append(reader(part).to(self.memory.memory_NLS.dtype))
        return torch.cat(one_hots, -1)

    def combine(self, one_hots: Tensor) -> Tensor:
        """The combination of each step, one-hot [N, E]. All 0 at an episode's start."""
        if not self.combinations:
            return one_hots[:, :0]
        combined, *others = one_hots.split(self.cardinalities, -1)
        for other in others:
            combined = (combined.unsqueeze(-1) * other.unsqueeze(-2)).flatten(1)
        return combined


class CurrentCounts(nn.Module):
    """For each pair of symbols with as many values, how often the second has had the first's current value."""

    first_V: Tensor  # for each pair of symbols and each of their values: its place among the values of all symbols
    second_V: Tensor
    pair_VP: Tensor  # 1 for the pair that an entry belongs to
    numbers: Tensor

    def __init__(self, symbols: list[int]) -> None:
        super().__init__()
        pairs = comparable_pairs(symbols)
        self.values, self.size = sum(symbols) if pairs else 0, len(pairs) * (MAX_COUNT + 1)
        places = [sum(symbols[:i]) for i in range(len(symbols))]
        entries = [(places[i] + v, places[j] + v, pair) for pair, (i, j) in enumerate(pairs) for v in range(symbols[i])]
        first, second, pair = torch.tensor(entries, dtype=torch.long).view(-1, 3).unbind(1)
        pair_VP = (pair.unsqueeze(1) == torch.arange(len(pairs))).float()
        buffers = {"first_V": first, "second_V": second, "pair_VP": pair_VP, "numbers": torch.arange(MAX_COUNT + 1)}
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer, persistent=False)

    def forward(self, values_NS: Tensor, counts_NS: Tensor) -> Tensor:
        """One-hots [N, P * 32] from the current values, one-hot, and the counts of all."""
        found_NV = values_NS.index_select(1, self.first_V) * counts_NS.index_select(1, self.second_V)
        counts_NP = (found_NV @ self.pair_VP).round().clamp(max=MAX_COUNT)
        return (counts_NP.unsqueeze(-1) == self.numbers).flatten(1).to(counts_NS.dtype)


def counted_parts(spec: EnvSpec) -> list[Part]:
    """Symbols outside of grids, and the previous action if it is discrete. Empty if they cannot be counted."""
    symbols = [part for part in spec.all_parts if part.kind == "symbols" and len(part.shape) <= 1]
    parts = list(symbols)
    if symbols and not isinstance(spec.single_action_space, spaces.Box):
        parts += [part for part in spec.parts if part.name == PREVIOUS_ACTION]
    return parts if number_of_combinations(parts) or comparable_pairs(cardinalities(symbols)) else []


def number_of_combinations(parts: list[Part]) -> int:
    """Of the values of all symbols and the previous action; 0 if there are too many to count."""
    number = math.prod(cardinalities(parts))
    return number if parts and number <= MAX_EVENTS else 0


def comparable_pairs(symbols: list[int]) -> list[tuple[int, int]]:
    """Pairs of symbols with as many values, and each with itself. None if there are too many, or values, to count."""
    pairs = [(i, j) for i, n in enumerate(symbols) for j, m in enumerate(symbols) if n == m]
    return pairs if len(pairs) <= MAX_PAIRS and sum(symbols) <= MAX_EVENTS else []


def cardinalities(parts: list[Part]) -> list[int]:
    """The number of values of each symbol, and the number of actions."""
    return [number for part in parts for number in (part.symbols or part.shape)]


def count_core(
    events_TBK: Tensor, memory_B1K: Tensor, starts_TB: Tensor, out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Counts after every step, and the memory after the last: called like a recurrent core.

    >>> events, starts = torch.tensor([[[1.0]], [[0.0]], [[1.0]]]), torch.tensor([[False], [True], [False]])
    >>> counts, memory = count_core(events, torch.tensor([[[5.0]]]), starts)
    >>> counts.flatten().tolist()
    [6.0, 0.0, 1.0]
    """
    before_BK = memory_B1K.squeeze(1)
    if len(events_TBK) == 1:
        counts_TBK = clear(starts_TB[0], before_BK)[0] + events_TBK
    else:
        steps_T1 = torch.arange(len(events_TBK), device=events_TBK.device).unsqueeze(1)
        last_start_TB = steps_T1.where(starts_TB, -1).cummax(0).values  # -1: the episode began before the first step
        started_TB1 = (last_start_TB >= 0).unsqueeze(-1)
        sums_TBK = events_TBK.cumsum(0)
        index_TBK = last_start_TB.clamp(min=0).unsqueeze(-1).expand_as(sums_TBK)
        earlier_TBK = (sums_TBK - events_TBK).gather(0, index_TBK).masked_fill(~started_TB1, 0)  # in other episodes
        counts_TBK = before_BK.masked_fill(started_TB1, 0) + (sums_TBK - earlier_TBK)
    memory_B1K = counts_TBK[-1].unsqueeze(1)
    return counts_TBK, memory_B1K if out is None else out.copy_(memory_B1K)
