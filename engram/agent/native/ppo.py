"""The loss of PPO and its gradient by the kernels: float32 on the CPU, in one pass."""

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from engram.agent.native.library import loaded

INPUTS = ("log_prob", "entropy", "value", "old_log_prob", "old_value", "advantages", "returns", "weights")
OPTIONS = ("clip", "vf_clip", "value_unit", "vf_coef", "ent_coef")
GRADIENTS = ("d_log_prob", "d_entropy", "d_value")


class Job(ctypes.Structure):
    """`struct ppo` of ppo.h."""

    _fields_ = [
        ("count", ctypes.c_long),
        *((name, ctypes.c_void_p) for name in INPUTS),
        *((name, ctypes.c_float) for name in OPTIONS),
        *((name, ctypes.c_void_p) for name in ("sums", *GRADIENTS)),
    ]


class LossAndGradient(NamedTuple):
    """Sums by weight of what the policy gains, of squared errors of values, entropies, divergences and clipped ratios;
    and the gradients of the total."""

    sums: Tensor  # [5]
    d_log_prob: Tensor
    d_entropy: Tensor
    d_value: Tensor


def loss_and_gradient(*inputs: Tensor, **options: Tensor | float) -> LossAndGradient:
    """`inputs` and `options` as INPUTS and OPTIONS name them; `vf_clip` is negative if values are not clipped."""
    held = [each.float().contiguous() for each in inputs]
    sums, made = held[0].new_empty(5), [torch.empty_like(held[0]) for _ in GRADIENTS]
    pointers = [tensor.data_ptr() for tensor in held]
    results = [tensor.data_ptr() for tensor in (sums, *made)]
    job = Job(held[0].numel(), *pointers, *(float(options[name]) for name in OPTIONS), *results)
    loaded().engram_ppo_loss(ctypes.byref(job))
    return LossAndGradient(sums, *made)
