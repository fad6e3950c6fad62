"""Random numbers by counting: a draw is a hash of what it is for, so it depends on nothing that happened before."""

import numpy as np

_MASK = 0xFFFFFFFFFFFFFFFF


def mix(value: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64, elementwise: every bit of the result depends on every bit of the value."""
    with np.errstate(over="ignore"):
        value = value + np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))


def fold(key: np.ndarray, part: np.ndarray | int) -> np.ndarray:
    """The key of one more thing under a key: of an environment, of its episode, of a step, of one draw."""
    number = np.uint64(part & _MASK) if isinstance(part, int) else part.astype(np.uint64)
    return mix(key ^ number)


def uniform(key: np.ndarray, purpose: int) -> np.ndarray:
    """Float64 in [0, 1), one for every key; draws for different purposes are independent."""
    return (fold(key, purpose) >> np.uint64(11)) * 2.0**-53


def below(key: np.ndarray, purpose: int, bound: int) -> np.ndarray:
    """Int64 in [0, bound), one for every key."""
    return (uniform(key, purpose) * bound).astype(np.int64)
