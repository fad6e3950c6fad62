"""Precision: what a policy computes in. Acting and learning must use the same, or a replay is not what was played."""

from typing import Literal

import torch

Precision = Literal["float32", "bfloat16"]


def autocast(precision: Precision, device: torch.device) -> torch.autocast:
    """With bfloat16, the matrix products of encoders and heads are in it; weights, memory and the loss stay float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")
