"""The device that a rank computes on, and the precision it computes in."""

from typing import Literal

import torch

from engram.settings import UserError
from engram.training.launch import Place

Precision = Literal["float32", "bfloat16"]


def choose_device(name: str, here: Place | None = None) -> torch.device:
    """The device by name; `auto` selects the fastest available one. With several ranks, each has its own GPU."""
    here = here or Place()
    available = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available() and here.size == 1,  # gradients cannot be all-reduced on MPS
    }
    if name == "auto":
        name = next(kind for kind in ("cuda", "mps", "cpu") if available[kind])
    if not available[name]:
        usable = ", ".join(kind for kind, present in available.items() if present)
        ranks = f" for {here.size} ranks" if here.size > 1 else ""
        raise UserError(f"device={name}: not available to torch on this machine{ranks}: choose one of {usable}")
    if name != "cuda" or here.size == 1:
        return torch.device(name)
    if here.local_rank >= torch.cuda.device_count():
        raise UserError(
            f"device=cuda: {here.local_size} processes on a machine with {torch.cuda.device_count()} GPUs: start one "
            "for each, with torchrun --nproc-per-node=gpu"
        )
    return torch.device("cuda", here.local_rank)


def autocast(precision: Precision, device: torch.device) -> torch.autocast:
    """bfloat16 for the matrix products of encoders and heads; weights, memory and the loss stay in float32.

    Acting and learning must use the same precision, or the replay differs from the rollout.
    """
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")
