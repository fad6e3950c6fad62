"""Counter-based random numbers (splitmix64): each draw is a hash of its key and never depends on earlier draws."""

from functools import cache
from typing import TypeVar

import numpy as np

Key = TypeVar("Key", int, np.ndarray)  # 64 bits: a Python int, or an array of uint64

_64_BITS = 0xFFFFFFFFFFFFFFFF


def mix(value: Key) -> Key:
    """The splitmix64 finaliser, elementwise: every output bit depends on every input bit."""
    value = (value + 0x9E3779B97F4A7C15) & _64_BITS
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _64_BITS
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _64_BITS
    return value ^ (value >> 31)


def fold(key: Key, part: Key | int) -> Key:
    """Derives a key from a key and a number: an environment's id, an episode, a step, the purpose of a draw."""
    return mix(key ^ (part & _64_BITS if isinstance(part, int) else part.astype(np.uint64)))


def uniform(key: np.ndarray, purpose: int) -> np.ndarray:
    """One float64 in [0, 1) per key; draws for different purposes are independent."""
    return (fold(key, purpose) >> 11) * 2.0**-53


def below(key: np.ndarray, purpose: int, bound: int) -> np.ndarray:
    """One int64 in [0, bound) per key."""
    return (uniform(key, purpose) * bound).astype(np.int64)


def episode_seed(seed: int, env_id: int, episode: int) -> int:
    """A 31-bit seed for one episode of one environment. It depends on nothing else."""
    return fold(_environment_key(seed, env_id), episode) >> 33


@cache
def _environment_key(seed: int, env_id: int) -> int:
    return fold(fold(0, seed), env_id)
