"""The memory report: what an agent remembers and for how long, measured over many episodes."""

# T steps, R rows, N agent-episodes, F features, U memory units per row

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engram.agent.metta_agent import MettaAgent
from engram.analysis.influence import Horizon, episode_step, group_means, memory_horizon
from engram.analysis.probe import (
    AgentEpisodes,
    ProbeScore,
    agent_episodes,
    explained_variance,
    facts,
    observation_features,
    scores,
)
from engram.analysis.recording import MemoryChange, Recording, record
from engram.env.settings import EnvSettings
from engram.training.settings import EVALUATION_SEED
from engram.training.statistics import Estimate, estimate

MAX_ROWS = 256  # played at the same time
MAX_ROW_STEPS = 100_000  # recorded; longer episodes are cut
MAX_PROBED_STEPS = 48  # of an episode
MIN_EPISODES = 20  # probed steps are reached by at least as many episodes
MAX_PAST_SAMPLES = 600  # steps at which a past observation is read from memory, for each lag
MIN_PAST_SAMPLES = 40  # with fewer, this lag and longer ones are left out
MAX_PAST_FEATURES = 32  # of an observation: those that vary most
PAST_LAGS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


class FactScores(NamedTuple):
    """The scores of one fact at each probed step."""

    name: str
    measure: str  # accuracy (balanced: 0.5 is chance) or explained variance (0 is chance)
    scores: list[ProbeScore | None]  # by step


class PastScore(NamedTuple):
    """The explained variance of the observation some steps ago."""

    lag: int
    memory: float
    observation: float  # from the current observation alone
    control: float  # from the memory of another episode


class MemoryReport(NamedTuple):
    episodes: int  # the number that `returns` average over
    length: float  # their mean number of steps
    returns: dict[str, Estimate | None]  # "normal" and each intervention
    swap_step: int
    horizon: Horizon | None
    steps: list[int]  # the steps of an episode at which facts are probed
    samples: list[int]  # the agent-episodes that reach each of them
    facts: list[FactScores]
    past: list[PastScore]
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        return {
            **self._asdict(),
            "returns": {name: value and value._asdict() for name, value in self.returns.items()},
            "horizon": self.horizon and self.horizon.to_json(),
            "facts": [
                {**fact._asdict(), "scores": [score and score._asdict() for score in fact.scores]}
                for fact in self.facts
            ],
            "past": [each._asdict() for each in self.past],
        }


def memory_report(
    agent: MettaAgent,
    env_settings: EnvSettings,
    episodes: int,
    *,
    greedy: bool = False,
    seed: int = EVALUATION_SEED,
) -> MemoryReport:
    """Play `episodes` episodes, and as many again with memory erased, frozen and swapped."""
    agents = agent.env_spec.agents
    num_envs = min(episodes, max(1, MAX_ROWS // agents))
    per_env = -(-episodes // num_envs)
    max_steps = max(2, MAX_ROW_STEPS // (num_envs * agents))

    def play(change: MemoryChange | None = None) -> Recording:
        return record(
            agent,
            env_settings,
            episodes=per_env,
            num_envs=num_envs,
            max_steps=max_steps,
            greedy=greedy,
            seed=seed,
            pictures=False,
            change=change,
        )

    normal = play()
    found = agent_episodes(normal)
    recorded_lengths = found.stops - found.starts
    # Environments play until the last one has ended, and the end of the recording cuts off their last episodes.
    lengths = normal.episodes.lengths[_is_counted(normal, per_env)] if len(normal.episodes) else recorded_lengths
    swap_step = max(1, int(np.median(lengths)) // 2)
    changes = interventions(normal, swap_step)
    steps = _probed_steps(recorded_lengths)
    samples, fact_scores = _facts_by_step(normal, found, steps)
    return MemoryReport(
        episodes=num_envs * per_env if normal.complete else len(normal.episodes) // agents,
        length=float(lengths.mean()),
        returns={
            "normal": mean_return(normal, agents, per_env),
            **{name: mean_return(play(make()), agents, per_env) for name, make in changes.items()},
        },
        swap_step=swap_step,
        horizon=memory_horizon(agent, normal),
        steps=steps,
        samples=samples,
        facts=fact_scores,
        past=_past(normal),
        notes=[] if normal.complete else [f"Recording stopped after {normal.steps} steps, before all episodes ended."],
    )


def interventions(recording: Recording, swap_step: int) -> dict[str, Callable[[], MemoryChange]]:
    """A factory of each intervention, by name. Some keep a state, so each recording needs a new one."""
    # Memory is recorded after each step: what `swap_step` starts with is that of the step before.
    bank = recording.memory[(episode_step(recording).numpy() == swap_step - 1) & recording.alive]
    swapped = partial(Swapped, torch.from_numpy(bank), swap_step)
    return {"erased": lambda: erased, "frozen": Frozen, "swapped": swapped}


def erased(memory: Tensor, since_start: Tensor) -> Tensor:
    """Memory is empty at every step."""
    return torch.zeros_like(memory)


class Frozen:
    """Memory stays what it was after the first observation of the episode."""

    def __init__(self) -> None:
        self._first: Tensor | None = None

    def __call__(self, memory: Tensor, since_start: Tensor) -> Tensor:
        if self._first is None:
            self._first = torch.zeros_like(memory)
        first = (since_start == 1).unsqueeze(1)
        self._first = torch.where(first, memory, self._first)
        return self._first


class Swapped:
    """At one step of each episode, memory is replaced by that of another episode at the same step."""

    def __init__(self, bank: Tensor, step: int) -> None:
        self._bank, self._step = bank, step
        self._generator = torch.Generator().manual_seed(0)

    def __call__(self, memory: Tensor, since_start: Tensor) -> Tensor:
        others = self._bank[torch.randint(len(self._bank), (len(memory),), generator=self._generator)]
        return torch.where((since_start == self._step).unsqueeze(1), others, memory)


def mean_return(recording: Recording, agents: int, episodes_per_env: int) -> Estimate | None:
    """The mean return over the first episodes of each environment; agents are averaged within an episode."""
    ended, number = recording.episodes, _number_in_row(recording)
    counted = _is_counted(recording, episodes_per_env)
    episode = (ended.rows // agents) * episodes_per_env + number
    return estimate(group_means(ended.returns[counted], episode[counted]))


def _is_counted(recording: Recording, episodes_per_env: int) -> np.ndarray:
    """Which finished episodes count: the first ones of each row, so that short episodes are not favoured."""
    return _number_in_row(recording) < episodes_per_env


def _number_in_row(recording: Recording) -> np.ndarray:
    """For each finished episode, the number of earlier ones in the same row."""
    rows = recording.episodes.rows
    number = np.zeros(len(rows), int)
    for row in np.unique(rows):
        own = np.flatnonzero(rows == row)
        number[own] = np.arange(len(own))
    return number


def _probed_steps(lengths: np.ndarray) -> list[int]:
    """At most MAX_PROBED_STEPS evenly spaced steps, all reached by MIN_EPISODES episodes (or by all, if fewer)."""
    last = int(np.sort(lengths)[-min(len(lengths), MIN_EPISODES)]) - 1
    return np.unique(np.linspace(0, last, MAX_PROBED_STEPS).round().astype(int)).tolist()


def _facts_by_step(
    recording: Recording, episodes: AgentEpisodes, steps: list[int]
) -> tuple[list[int], list[FactScores]]:
    known = facts(recording, episodes)
    agents = recording.spec.agents
    groups = (episodes.rows // agents) * recording.steps + episodes.starts  # agents of one environment are one group
    samples, by_step = [], []
    for step in steps:
        running = np.flatnonzero(episodes.stops - episodes.starts > step)
        at = (episodes.starts[running] + step, episodes.rows[running])
        features, _ = observation_features(recording.spec, recording.observations[at])
        targets = [fact.values[running] for fact in known]
        samples.append(len(running))
        by_step.append(scores(recording.memory[at], features, targets, groups[running]))
    found = [
        FactScores(fact.name, "accuracy" if fact.binary else "explained variance", [row[index] for row in by_step])
        for index, fact in enumerate(known)
    ]
    return samples, [fact for fact in found if any(fact.scores)]


def _past(recording: Recording) -> list[PastScore]:
    """The scores of reading past observations from memory, for each of PAST_LAGS."""
    since_TR = episode_step(recording).numpy()
    rng = np.random.default_rng(0)
    found = []
    for lag in PAST_LAGS:
        steps, rows = np.nonzero((since_TR >= lag) & recording.alive)
        if lag > since_TR.max() or len(steps) < MIN_PAST_SAMPLES:
            break
        chosen = rng.permutation(len(steps))[:MAX_PAST_SAMPLES]
        now, then = (steps[chosen], rows[chosen]), (steps[chosen] - lag, rows[chosen])
        targets = _varying(observation_features(recording.spec, recording.observations[then])[0])
        current = observation_features(recording.spec, recording.observations[now])[0]
        groups = (rows[chosen] // recording.spec.agents) * recording.steps + now[0] - since_TR[now]
        memory = recording.memory[now]
        inputs = (memory, current, rng.permutation(memory))
        explained = [explained_variance(each, targets, groups) for each in inputs]
        if None not in explained:
            found.append(PastScore(lag, *explained))  # type: ignore[arg-type]
    return found


def _varying(features: np.ndarray) -> np.ndarray:
    """The features that vary most relative to their largest value, unscaled."""
    scaled = features / np.maximum(np.abs(features).max(0), 1e-6)
    return features[:, np.argsort(-scaled.std(0), kind="stable")[:MAX_PAST_FEATURES]]
