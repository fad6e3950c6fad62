"""The PPO loss kernel: the loss and its gradient in one pass, float32 on the CPU."""

import ctypes
from typing import NamedTuple

from torch import Tensor

from engram.native.call import check_tensors, integers, pointers, run

INPUTS = ("log_prob", "entropy", "value", "old_log_prob", "old_value", "advantages", "returns", "weights")
OPTIONS = ("clip", "vf_clip", "value_unit", "vf_coef", "ent_coef")
GRADIENTS = ("d_log_prob", "d_entropy", "d_value")
FLOAT = 4  # bytes


class PPOCall(ctypes.Structure):
    """`struct ppo` of ppo.h."""

    _fields_ = [
        *integers("count"),
        *pointers(" ".join(INPUTS)),
        *((name, ctypes.c_float) for name in OPTIONS),
        *pointers("losses"),
        *pointers(" ".join(GRADIENTS)),
    ]


class LossAndGradient(NamedTuple):
    """The weighted losses, and the gradients of the total."""

    losses: Tensor  # [6]: total, policy loss, value loss, entropy, KL divergence, fraction of clipped ratios
    gradients: Tensor  # [3, ...]: of the log-probabilities, entropies and values


def loss_and_gradient(*inputs: Tensor, **options: Tensor | float) -> LossAndGradient:
    """`inputs` and `options` in the order of INPUTS and OPTIONS; a negative `vf_clip` means no value clipping."""
    held = [each.float().contiguous() for each in inputs]
    check_tensors("PPO loss", dict(zip(INPUTS, held, strict=True)), dict.fromkeys(INPUTS, held[0].shape))
    losses, gradients = held[0].new_empty(6), held[0].new_empty(len(GRADIENTS), *held[0].shape)
    step = gradients.stride(0) * FLOAT
    call = PPOCall(
        held[0].numel(),
        *(tensor.data_ptr() for tensor in held),
        *(float(options[name]) for name in OPTIONS),
        losses.data_ptr(),
        *(gradients.data_ptr() + i * step for i in range(len(GRADIENTS))),
    )
    run("ppo_loss", call)
    return LossAndGradient(losses, gradients)
