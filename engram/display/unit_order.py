"""Chooses and orders units of memory for a heat map, so that units that behave alike are neighbours."""

# N samples, U units

import numpy as np


def unit_order(memory_NU: np.ndarray, count: int) -> np.ndarray:
    """The indices of the `count` units that vary most, ordered by similarity.

    Units are points in the plane of the first two principal components; those that rise and fall together lie in the
    same direction. They are ordered by that angle, beginning at the widest gap.
    """
    bounded = np.tanh(memory_NU)  # cells of an LSTM have no bound; a few large ones must not hide the others
    centred = bounded - bounded.mean(0)
    spread = centred.std(0)
    chosen = np.sort(np.argsort(-spread, kind="stable")[:count])
    scaled = centred[:, chosen] / np.maximum(spread[chosen], 1e-8)
    if len(scaled) < 2 or len(chosen) < 3:
        return chosen
    *_, directions = np.linalg.svd(scaled, full_matrices=False)
    angles = np.arctan2(directions[1], directions[0])
    order = np.argsort(angles, kind="stable")
    gaps = np.diff(angles[order], append=angles[order[0]] + 2 * np.pi)
    return chosen[np.roll(order, -int(np.argmax(gaps)) - 1)]
