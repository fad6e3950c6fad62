"""The loss of PPO and its gradient by the kernels: float32 on the CPU, in one pass."""

import ctypes
from typing import NamedTuple

from torch import Tensor

from engram.native.library import loaded
from engram.native.shapes import expect

INPUTS = ("log_prob", "entropy", "value", "old_log_prob", "old_value", "advantages", "returns", "weights")
OPTIONS = ("clip", "vf_clip", "value_unit", "vf_coef", "ent_coef")
GRADIENTS = ("d_log_prob", "d_entropy", "d_value")


class Job(ctypes.Structure):
    """`struct ppo` of ppo.h."""

    _fields_ = [
        ("count", ctypes.c_long),
        *((name, ctypes.c_void_p) for name in INPUTS),
        *((name, ctypes.c_float) for name in OPTIONS),
        *((name, ctypes.c_void_p) for name in ("losses", *GRADIENTS)),
    ]


class LossAndGradient(NamedTuple):
    """Losses by weight, and the gradients of the total."""

    losses: Tensor  # [6]: the total, of the policy, of values; entropy, divergence and share of clipped ratios
    gradients: Tensor  # [3, ...]: by log-probabilities, entropies and values


def loss_and_gradient(*inputs: Tensor, **options: Tensor | float) -> LossAndGradient:
    """`inputs` and `options` as INPUTS and OPTIONS name them; `vf_clip` is negative if values are not clipped."""
    held = [each.float().contiguous() for each in inputs]
    expect("the loss of PPO", dict(zip(INPUTS, held, strict=True)), dict.fromkeys(INPUTS, held[0].shape))
    losses, gradients = held[0].new_empty(6), held[0].new_empty(len(GRADIENTS), *held[0].shape)
    pointers, count = [tensor.data_ptr() for tensor in held], held[0].numel()
    results = [losses.data_ptr(), *(gradients.data_ptr() + i * gradients.stride(0) * 4 for i in range(len(GRADIENTS)))]
    job = Job(count, *pointers, *(float(options[name]) for name in OPTIONS), *results)
    loaded().engram_ppo_loss(ctypes.byref(job))
    return LossAndGradient(losses, gradients)
