"""Linear probes: how well facts can be read from memory, on held-out episodes, against a shuffled control."""

# N samples, D inputs, Y targets

from typing import NamedTuple

import numpy as np

FOLDS = 5
SHUFFLES = 5
RIDGE = 0.1  # relative to the mean square of a standardised input
FEWEST = 4 * FOLDS  # samples
FEWEST_OF_A_KIND = FOLDS


class ProbeScore(NamedTuple):
    """Balanced accuracy of a fact with two values, else the explained variance (R²)."""

    memory: float  # read from memory
    observation: float  # read from the current observation alone
    control: float  # read from memory, with the facts shuffled between episodes


def scores(
    memory: np.ndarray, observation: np.ndarray, targets: list[np.ndarray], groups: np.ndarray, seed: int = 0
) -> list[ProbeScore | None]:
    """A score for each target [N]; None where it is known for too few samples or hardly varies.

    Samples of one group (an episode) are never both learned from and tested on.
    """
    rng = np.random.default_rng(seed)
    found: list[ProbeScore | None] = []
    for values in targets:
        known = ~np.isnan(values)
        y, own = values[known].astype(np.float64), groups[known]
        if not _enough(y, own):
            found.append(None)
            continue
        folds = _folds(own, rng)
        shuffled = np.stack([y, *(_shuffled(y, own, rng) for _ in range(SHUFFLES))], axis=1)
        from_memory = _score(memory[known], shuffled, folds)
        from_observation = _score(observation[known], y[:, None], folds)
        found.append(ProbeScore(from_memory[0], from_observation[0], float(np.mean(from_memory[1:]))))
    return found


def explained(inputs: np.ndarray, targets: np.ndarray, groups: np.ndarray, seed: int = 0) -> float | None:
    """The variance of all targets [N, Y] that the inputs [N, D] explain on held-out groups; None if there is none."""
    varying = targets[:, targets.std(0) > 1e-6].astype(np.float64)
    if not varying.shape[1] or len(np.unique(groups)) < FOLDS:
        return None
    scaled = (varying - varying.mean(0)) / varying.std(0)
    predicted, baseline, _ = _held_out(inputs, scaled, _folds(groups, np.random.default_rng(seed)))
    return float(1 - ((predicted - scaled) ** 2).sum() / ((baseline - scaled) ** 2).sum())


def _enough(y: np.ndarray, groups: np.ndarray) -> bool:
    if len(y) < FEWEST or len(np.unique(groups)) < FOLDS or y.std() < 1e-6:
        return False
    values, counts = np.unique(y, return_counts=True)
    return len(values) > 2 or counts.min() >= FEWEST_OF_A_KIND


def _folds(groups: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A fold for each sample, the same for all samples of a group."""
    names, index = np.unique(groups, return_inverse=True)
    return (rng.permutation(len(names)) % FOLDS)[index]


def _shuffled(y: np.ndarray, groups: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each group gets the values of a different one."""
    names, first, index = np.unique(groups, return_index=True, return_inverse=True)
    if len(names) == len(y):
        return rng.permutation(y)
    return y[first][rng.permutation(len(names))][index]


def _score(x: np.ndarray, y: np.ndarray, folds: np.ndarray) -> list[float]:
    """The score of each column of y [N, Y]."""
    predicted, baseline, margin = _held_out(x, y, folds)
    found = []
    for column, truth in enumerate(y.T):
        values = np.unique(truth)
        if len(values) == 2:
            high = truth == values[1]
            right = (margin[:, column] > 0) == high
            found.append(float((right[high].mean() + right[~high].mean()) / 2))
        else:
            error, spread = (predicted[:, column] - truth) ** 2, (baseline[:, column] - truth) ** 2
            found.append(float(1 - error.sum() / spread.sum()))
    return found


def _held_out(x: np.ndarray, y: np.ndarray, folds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ridge predictions [N, Y] of each fold from the others, their means, and margins to the middle of two values."""
    x, predicted, baseline, margin = x.astype(np.float64), *(np.zeros_like(y, dtype=np.float64) for _ in range(3))
    for fold in np.unique(folds):
        test, train = folds == fold, folds != fold
        mean, spread = x[train].mean(0), x[train].std(0)
        used = spread > 1e-6
        if not used.any():
            predicted[test] = baseline[test] = y[train].mean(0)
            continue
        inputs = (x[:, used] - mean[used]) / spread[used]
        learned, middle = inputs[train], y[train].mean(0)
        kernel = learned @ learned.T / used.sum()
        weights = np.linalg.solve(kernel + RIDGE * np.eye(len(learned)), y[train] - middle)
        every = inputs @ learned.T @ weights / used.sum() + middle
        predicted[test], baseline[test] = every[test], middle
        margin[test] = every[test] - _thresholds(every[train], y[train])
    return predicted, baseline, margin


def _thresholds(predicted: np.ndarray, y: np.ndarray) -> np.ndarray:
    """For each column, the middle between the mean predictions of low and of high values."""
    middle = (y.min(0) + y.max(0)) / 2
    high = y > middle
    counts = high.sum(0)
    mean_high = (predicted * high).sum(0) / np.maximum(counts, 1)
    mean_low = (predicted * ~high).sum(0) / np.maximum(len(y) - counts, 1)
    return (mean_high + mean_low) / 2
