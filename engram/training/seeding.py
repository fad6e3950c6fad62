"""The random numbers of a run: streams for each purpose, all made of the run's seed."""

import hashlib

import torch


def stream(device: torch.device | str, seed: int, *purpose: str | int) -> torch.Generator:
    """A generator that is like no other purpose's."""
    return torch.Generator(device).manual_seed(number(seed, *purpose))


def number(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed."""
    return int.from_bytes(hashlib.sha256(repr((seed, *purpose)).encode()).digest()[:8], "big") >> 1
