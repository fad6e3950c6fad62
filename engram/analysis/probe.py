"""Linear probes: facts about episodes, and how well they can be read from memory.

A probe is tested on held-out episodes and compared with a shuffled control.
"""

# T steps, R rows, F features, N agent-episodes or samples, D inputs, Y targets

from typing import NamedTuple

import numpy as np

from engram.analysis.recording import Recording
from engram.env.spec import EMPTY_LOCATION, EnvSpec

MAX_FACTS = 12
MIN_MINORITY = 0.1  # in at least this fraction of the episodes, a fact must differ from its most common value
IMAGE_CELLS = 4  # an image becomes the mean brightness of 4 x 4 cells
FOLDS = 5
SHUFFLES = 5
RIDGE = 0.1  # relative to the mean square of a standardised input
MIN_SAMPLES = 4 * FOLDS
MIN_PER_VALUE = FOLDS  # samples of each value of a binary fact


class Fact(NamedTuple):
    """One number for each agent-episode, which memory may hold, e.g. `first saw cue` or `ends with return`."""

    name: str
    values: np.ndarray  # [N], NaN where unknown

    @property
    def binary(self) -> bool:
        return len(np.unique(self.values[~np.isnan(self.values)])) == 2


class AgentEpisodes(NamedTuple):
    """One entry for each agent and episode of a recording: the row of the agent, and the steps of the episode."""

    rows: np.ndarray  # [N]
    starts: np.ndarray  # [N] the first step
    stops: np.ndarray  # [N] the step after the last one
    complete: np.ndarray  # [N] whether it ended within the recording


def agent_episodes(recording: Recording) -> AgentEpisodes:
    found = []
    rows = recording.starts.shape[1]
    for row, finished in enumerate(np.bincount(recording.episodes.rows, minlength=rows)):
        starts = np.flatnonzero(recording.starts[:, row])
        spans = zip(starts, [*starts[1:], recording.steps], strict=True)
        alive = [(start, stop) for start, stop in spans if recording.alive[start, row]]
        # No start follows an episode that ends at the last step, so being complete cannot be read off the starts.
        found += [(row, start, stop, number < finished) for number, (start, stop) in enumerate(alive)]
    return AgentEpisodes(*(np.array(column) for column in zip(*found, strict=True)))


def observation_features(spec: EnvSpec, observations: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Observations [..., *shape] as features [..., F], with their names."""
    if spec.observation_kind == "tokens":
        return _token_features(spec, observations)
    parts = {"": observations} if spec.packing is None else spec.packing.views(np.ascontiguousarray(observations))
    kinds = {part.name: part.kind for part in spec.all_parts}
    columns, names = [], []
    for name, part in parts.items():
        lead = observations.ndim - len(spec.row[0])
        if kinds.get(name) == "image":
            part = _cell_brightness(part, lead)
        entries = [", ".join(map(str, index)) for index in np.ndindex(part.shape[lead:])]
        flat = part.reshape(*part.shape[:lead], -1).astype(np.float32)
        columns.append(flat)
        names += [f"{name or 'observation'}[{entry}]" if entry else name for entry in entries]
    return np.concatenate(columns, axis=-1), names


def _token_features(spec: EnvSpec, tokens: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """The largest value of each feature in view; 0 if it is not."""
    present = tokens[..., 0] != EMPTY_LOCATION
    values = np.where(present, tokens[..., 2], 0)
    found = [np.where(tokens[..., 1] == feature.id, values, 0).max(-1) for feature in spec.features]
    return np.stack(found, -1).astype(np.float32), [feature.name for feature in spec.features]


def _cell_brightness(images: np.ndarray, lead: int) -> np.ndarray:
    """The mean brightness [..., IMAGE_CELLS, IMAGE_CELLS] of images [..., H, W, C] with `lead` leading dimensions."""
    brightness = images.mean(-1)
    cells = [
        cell.mean((lead, lead + 1))
        for row in np.array_split(brightness, IMAGE_CELLS, axis=lead)
        for cell in np.array_split(row, IMAGE_CELLS, axis=lead + 1)
    ]
    return np.stack(cells, -1).reshape(*images.shape[:lead], IMAGE_CELLS, IMAGE_CELLS)


def facts(recording: Recording, episodes: AgentEpisodes) -> list[Fact]:
    """Facts that vary between episodes: features of the first observation, and statistics of the episode's end."""
    first = recording.observations[episodes.starts, episodes.rows]
    seen, names = observation_features(recording.spec, first)
    found = [Fact(f"first saw {name}", seen[:, index]) for index, name in enumerate(names)]
    found += _outcomes(recording, episodes)
    return _distinct([fact for fact in found if _varies(fact)])[:MAX_FACTS]


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


def _varies(fact: Fact) -> bool:
    known = fact.values[~np.isnan(fact.values)]
    if len(known) < 2:
        return False
    _, counts = np.unique(known, return_counts=True)
    return counts.max() <= (1 - MIN_MINORITY) * len(known)


def _distinct(found: list[Fact]) -> list[Fact]:
    """The facts, without those that follow from an earlier one, such as the second of two cues."""
    kept: list[Fact] = []
    for fact in found:
        if not any(_determines(other.values, fact.values) for other in kept):
            kept.append(fact)
    return kept


def _determines(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two facts are the same up to a linear map, and known for equally many episodes."""
    known = ~np.isnan(first) & ~np.isnan(second)
    if known.sum() < 2 or np.isnan(first).sum() != np.isnan(second).sum():
        return False
    return bool(abs(np.corrcoef(first[known], second[known])[0, 1]) > 0.999)


class ProbeScore(NamedTuple):
    """Balanced accuracy of a fact with two values, else the explained variance (R²)."""

    memory: float  # read from memory
    observation: float  # read from the current observation alone
    control: float  # read from memory, with the facts shuffled between episodes


def scores(
    memory: np.ndarray, observation: np.ndarray, targets: list[np.ndarray], groups: np.ndarray
) -> list[ProbeScore | None]:
    """A score for each target [N]; None where it is known for too few samples or hardly varies.

    Samples of one group (an episode) are never both learned from and tested on.
    """
    rng = np.random.default_rng(0)
    found: list[ProbeScore | None] = []
    for values in targets:
        known = ~np.isnan(values)
        y, own = values[known].astype(np.float64), groups[known]
        if not _enough_samples(y, own):
            found.append(None)
            continue
        folds = _folds(own, rng)
        shuffled = np.stack([y, *(_shuffled(y, own, rng) for _ in range(SHUFFLES))], axis=1)
        from_memory = _score(memory[known], shuffled, folds)
        from_observation = _score(observation[known], y[:, None], folds)
        found.append(ProbeScore(from_memory[0], from_observation[0], float(np.mean(from_memory[1:]))))
    return found


def explained_variance(inputs: np.ndarray, targets: np.ndarray, groups: np.ndarray) -> float | None:
    """The fraction of the targets' variance [N, Y] that inputs [N, D] explain on held-out groups.

    None if no target varies, or if there are too few groups.
    """
    varying = targets[:, targets.std(0) > 1e-6].astype(np.float64)
    if not varying.shape[1] or len(np.unique(groups)) < FOLDS:
        return None
    scaled = (varying - varying.mean(0)) / varying.std(0)
    held_out = _predict_held_out(inputs, scaled, _folds(groups, np.random.default_rng(0)))
    return float(1 - ((held_out.predicted - scaled) ** 2).sum() / ((held_out.baseline - scaled) ** 2).sum())


def _enough_samples(y: np.ndarray, groups: np.ndarray) -> bool:
    if len(y) < MIN_SAMPLES or len(np.unique(groups)) < FOLDS or y.std() < 1e-6:
        return False
    values, counts = np.unique(y, return_counts=True)
    return len(values) > 2 or counts.min() >= MIN_PER_VALUE


def _folds(groups: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A fold for each sample, the same for all samples of a group."""
    names, index = np.unique(groups, return_inverse=True)
    return (rng.permutation(len(names)) % FOLDS)[index]


def _shuffled(y: np.ndarray, groups: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The values, permuted between groups."""
    names, first, index = np.unique(groups, return_index=True, return_inverse=True)
    if len(names) == len(y):
        return rng.permutation(y)
    return y[first][rng.permutation(len(names))][index]


def _score(x: np.ndarray, y: np.ndarray, folds: np.ndarray) -> list[float]:
    """The score of each column of y [N, Y]: balanced accuracy if the first column has two values, else R².

    A column without variance scores as chance does.
    """
    predicted, baseline, margin = _predict_held_out(x, y, folds)
    values = np.unique(y[:, 0])
    found = []
    for column, truth in enumerate(y.T):
        if len(values) == 2:
            high = truth == values[1]
            right = (margin[:, column] > 0) == high
            found.append(0.5 if high.all() or not high.any() else float((right[high].mean() + right[~high].mean()) / 2))
        else:
            error, spread = (predicted[:, column] - truth) ** 2, (baseline[:, column] - truth) ** 2
            found.append(float(1 - error.sum() / spread.sum()) if spread.any() else 0.0)
    return found


class _HeldOut(NamedTuple):
    """Predictions for each sample from the other folds."""

    predicted: np.ndarray  # [N, Y]
    baseline: np.ndarray  # [N, Y]: the mean of the other folds
    margin: np.ndarray  # [N, Y]: above 0 if a two-valued target is predicted to be the high value


def _predict_held_out(x: np.ndarray, y: np.ndarray, folds: np.ndarray) -> _HeldOut:
    """Ridge regression of y [N, Y] on x [N, D], in its dual form: there may be more inputs than samples."""
    x = x.astype(np.float64)
    predicted, baseline, margin = (np.zeros_like(y, dtype=np.float64) for _ in range(3))
    for fold in np.unique(folds):
        test, train = folds == fold, folds != fold
        mean, spread = x[train].mean(0), x[train].std(0)
        used = spread > 1e-6
        if not used.any():
            predicted[test] = baseline[test] = y[train].mean(0)
            continue
        inputs = (x[:, used] - mean[used]) / spread[used]
        train_inputs, train_mean = inputs[train], y[train].mean(0)
        kernel = train_inputs @ train_inputs.T / used.sum()
        weights = np.linalg.solve(kernel + RIDGE * np.eye(len(train_inputs)), y[train] - train_mean)
        outputs = inputs @ train_inputs.T @ weights / used.sum() + train_mean
        predicted[test], baseline[test] = outputs[test], train_mean
        margin[test] = outputs[test] - _thresholds(outputs[train], y[train])
    return _HeldOut(predicted, baseline, margin)


def _thresholds(predicted: np.ndarray, y: np.ndarray) -> np.ndarray:
    """For each column, the midpoint between the mean predictions for low and for high values."""
    middle = (y.min(0) + y.max(0)) / 2
    high = y > middle
    counts = high.sum(0)
    mean_high = (predicted * high).sum(0) / np.maximum(counts, 1)
    mean_low = (predicted * ~high).sum(0) / np.maximum(len(y) - counts, 1)
    return (mean_high + mean_low) / 2
