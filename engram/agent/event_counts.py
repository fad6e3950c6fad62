"""Event counts: how often each combination of symbols and previous action has occurred in the episode so far.

A memory that is exact without training: cells already tried, cards already seen, rewards of each arm of a bandit.
"""

# B rows, T steps, N = B * T, K events

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
SCALE = 4.0  # so that the count of a rare event varies about as much as a normalised observation


class EventCounts(nn.Module):
    """Counts events: "a miss in this cell", "a reward from this arm".

    An event is a combination of the values of all symbols and of the previous action.
    """

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        parts = counted_parts(spec)
        if not parts:
            raise UserError(
                f"py_agent.counts: {spec.name} has no symbols outside of grids, or they and the actions have more than "
                f"{MAX_EVENTS} combinations: only small Discrete and MultiDiscrete observations can be counted"
            )
        self.names, self.cardinalities = [part.name for part in parts], cardinalities(parts)
        self.readers = nn.ModuleList(OneHot(part) if part.kind == "symbols" else nn.Identity() for part in parts)
        self.size = math.prod(self.cardinalities)
        self.memory = MemoryStore(1, self.size)

    def forward(self, observations: Observations, td: TensorDictBase, rows: int, steps: int) -> Tensor:
        """The logarithm of 1 + the count of each event, less the mean over events, scaled: [N, K]."""
        events_NK = self.events(observations)
        logs_NK = run_with_memory(count_core, self.memory, "counts", events_NK, td, rows, steps).clamp(min=0).log1p()
        return SCALE * (logs_NK - logs_NK.mean(-1, keepdim=True))

    def events(self, observations: Observations) -> Tensor:
        """The event of each step, one-hot [N, K]. All 0 at an episode's start, where there is no previous action."""
        one_hots = []
        for name, reader in zip(self.names, self.readers, strict=True):
            part = observations if isinstance(observations, Tensor) else observations[name]
            one_hots.append(reader(part).to(self.memory.memory_NLS.dtype))
        events, *others = torch.cat(one_hots, -1).split(self.cardinalities, -1)
        for other in others:
            events = (events.unsqueeze(-1) * other.unsqueeze(-2)).flatten(1)
        return events


def counted_parts(spec: EnvSpec) -> list[Part]:
    """Symbols outside of grids, and the previous action if it is discrete. Empty if they cannot be counted."""
    parts = [part for part in spec.all_parts if part.kind == "symbols" and len(part.shape) <= 1]
    if parts and not isinstance(spec.single_action_space, spaces.Box):
        parts += [part for part in spec.parts if part.name == PREVIOUS_ACTION]
    return parts if math.prod(cardinalities(parts)) <= MAX_EVENTS else []


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
