"""Seeds and generators for the separate purposes of a run, all derived from its seed."""

import hashlib

import torch


def generator(device: torch.device | str, seed: int, *purpose: str | int) -> torch.Generator:
    return torch.Generator(device).manual_seed(derive_seed(seed, *purpose))


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed, different for every purpose."""
    return int.from_bytes(hashlib.sha256(repr((seed, *purpose)).encode()).digest()[:8], "big") >> 1
