"""The PPO loss and its gradient in one pass: float32 on the CPU."""

import ctypes
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engram.native.library import check_tensors, integers, pointers, run, usable

INPUTS = ("log_prob", "entropy", "value", "old_log_prob", "old_value", "advantages", "returns", "weights")
OPTIONS = ("value_unit", "clip", "vf_clip", "vf_coef", "ent_coef")
GRADIENTS = ("d_log_prob", "d_entropy", "d_value")
FLOAT = 4  # bytes


def ppo_kernel_usable(*tensors: Tensor) -> bool:
    """Whether `fused_ppo_loss` takes these: all of one shape, float32 on the CPU."""
    return all(each.shape == tensors[0].shape for each in tensors) and usable(tensors[0])


def fused_ppo_loss(*arguments: Any) -> tuple[Tensor, ...]:
    """Total, policy loss, value loss, entropy, KL and clip fraction.

    Arguments: those named in INPUTS, then those in OPTIONS, with None as `vf_clip` if values are not clipped.
    """
    return _PPOLoss.apply(*arguments)


class _PPOLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        options = dict(zip(OPTIONS, arguments[len(INPUTS) :], strict=True))
        if options["vf_clip"] is None:
            options["vf_clip"] = -1.0
        losses, gradients = loss_and_gradient(*arguments[: len(INPUTS)], **options)
        ctx.save_for_backward(gradients)
        total, *others = losses.unbind()
        ctx.mark_non_differentiable(*others)
        return total, *others

    @staticmethod
    def backward(ctx: Any, *d_losses: Any) -> Any:  # of the first three inputs; the others have no gradient
        return *(ctx.saved_tensors[0] * d_losses[0]).unbind(), *[None] * (len(INPUTS) + len(OPTIONS) - len(GRADIENTS))


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
    """`inputs` in the order of INPUTS, `options` named as in OPTIONS; a negative `vf_clip` means no value clipping."""
    held = [each.float().contiguous() for each in inputs]  # kept alive for the kernel, which gets pointers
    check_tensors("PPO loss", dict(zip(INPUTS, held, strict=True)), dict.fromkeys(INPUTS, held[0].shape))
    losses, gradients = held[0].new_empty(6), held[0].new_empty(len(GRADIENTS), *held[0].shape)
    gradient_bytes = gradients.stride(0) * FLOAT
    call = PPOCall(
        held[0].numel(),
        *(tensor.data_ptr() for tensor in held),
        *(float(options[name]) for name in OPTIONS),
        losses.data_ptr(),
        *(gradients.data_ptr() + i * gradient_bytes for i in range(len(GRADIENTS))),
    )
    run("ppo_loss", call)
    return LossAndGradient(losses, gradients)
