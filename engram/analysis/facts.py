"""Facts about an episode that an agent may remember: what it saw first, and how the episode ended."""

# T steps, R rows, F features, N agent-episodes

from typing import NamedTuple

import numpy as np

from engram.analysis.recording import Recording
from engram.env.spec import EMPTY_LOCATION, EnvSpec

MOST_FACTS = 12
RARE = 0.1  # a fact must differ in at least this fraction of the episodes
IMAGE_CELLS = 4  # an image is described by the mean brightness of as many cells a side


class Fact(NamedTuple):
    name: str
    values: np.ndarray  # [N], NaN where unknown

    @property
    def binary(self) -> bool:
        return len(np.unique(self.values[~np.isnan(self.values)])) == 2


class AgentEpisodes(NamedTuple):
    """The agent-episodes of a recording, each a row from its first step to its end."""

    rows: np.ndarray  # [N]
    starts: np.ndarray  # [N] its first step
    stops: np.ndarray  # [N] the step after its last one
    complete: np.ndarray  # [N] whether it ended within the recording


def agent_episodes(recording: Recording, episode_starts_TR: np.ndarray) -> AgentEpisodes:
    found = []
    for row in range(episode_starts_TR.shape[1]):
        starts = np.flatnonzero(episode_starts_TR[:, row])
        stops = [*starts[1:], recording.steps]
        found += [
            (row, start, stop, stop < recording.steps)
            for start, stop in zip(starts, stops, strict=True)
            if recording.alive[start, row]
        ]
    return AgentEpisodes(*(np.array(column) for column in zip(*found, strict=True)))


def observation_features(spec: EnvSpec, observations: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Observations [..., *shape] as features [..., F], with names that a person understands."""
    if spec.observation_kind == "tokens":
        return _token_features(spec, observations)
    parts = {"": observations} if spec.packing is None else spec.packing.views(np.ascontiguousarray(observations))
    kinds = {part.name: part.kind for part in spec.all_parts}
    columns, names = [], []
    for name, part in parts.items():
        lead = observations.ndim - len(spec.row[0])
        if kinds.get(name) == "image":
            part = _cells(part, lead)
        flat = part.reshape(*part.shape[:lead], -1).astype(np.float32)
        columns.append(flat)
        names += [f"{name or 'observation'}[{index}]" for index in range(flat.shape[-1])]
    return np.concatenate(columns, axis=-1), names


def _token_features(spec: EnvSpec, tokens: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """The largest value of each feature in view; 0 if it is not."""
    present = tokens[..., 0] != EMPTY_LOCATION
    values = np.where(present, tokens[..., 2], 0)
    found = [np.where(tokens[..., 1] == feature.id, values, 0).max(-1) for feature in spec.features]
    return np.stack(found, -1).astype(np.float32), [feature.name for feature in spec.features]


def _cells(images: np.ndarray, lead: int) -> np.ndarray:
    """The mean brightness of cells of an image [..., H, W, C]."""
    bright = images.mean(-1)
    cells = [
        cell.mean((lead, lead + 1))
        for row in np.array_split(bright, IMAGE_CELLS, axis=lead)
        for cell in np.array_split(row, IMAGE_CELLS, axis=lead + 1)
    ]
    return np.stack(cells, -1)


def facts(recording: Recording, episodes: AgentEpisodes) -> list[Fact]:
    """Facts that differ between episodes: what was seen first, and statistics of the episode's end."""
    first = recording.observations[episodes.starts, episodes.rows]
    seen, names = observation_features(recording.spec, first)
    found = [Fact(f"first saw {name}", seen[:, index]) for index, name in enumerate(names)]
    found += _outcomes(recording, episodes)
    return _distinct([fact for fact in found if _differs(fact)])[:MOST_FACTS]


def _outcomes(recording: Recording, episodes: AgentEpisodes) -> list[Fact]:
    """Return and statistics of the complete episodes. Finished episodes are in the order of their end, by row."""
    ended = recording.episodes
    values = {"return": ended.returns, **ended.stats}
    columns = {name: np.full(len(episodes.rows), np.nan, np.float32) for name in values}
    for row in np.unique(episodes.rows):
        own = np.flatnonzero((episodes.rows == row) & episodes.complete)
        finished = np.flatnonzero(ended.rows == row)[: len(own)]
        for name, column in columns.items():
            column[own[: len(finished)]] = values[name][finished]
    return [Fact(f"ends with {name}", column) for name, column in columns.items()]


def _differs(fact: Fact) -> bool:
    known = fact.values[~np.isnan(fact.values)]
    if len(known) < 2:
        return False
    _, counts = np.unique(known, return_counts=True)
    return counts.max() <= (1 - RARE) * len(known)


def _distinct(found: list[Fact]) -> list[Fact]:
    """Without facts that follow from a different one, such as the second of two cues."""
    kept: list[Fact] = []
    for fact in found:
        if not any(_tells(other.values, fact.values) for other in kept):
            kept.append(fact)
    return kept


def _tells(first: np.ndarray, second: np.ndarray) -> bool:
    known = ~np.isnan(first) & ~np.isnan(second)
    if known.sum() < 2 or np.isnan(first).sum() != np.isnan(second).sum():
        return False
    return bool(abs(np.corrcoef(first[known], second[known])[0, 1]) > 0.999)
