"""A categorical choice: how it is made, how likely it was and how open it is, with a gradient in closed form.

Autograd would take twice the operations, and on CPUs each takes longer than the arithmetic of a small minibatch.
"""

# N rows, W logits

import torch
from torch import Tensor

from engram.agent.recurrent.operator import Operator
from engram.native import choice as native
from engram.native.library import usable


def sample_choice(logits: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The index [N] whose share of the probability holds the noise [N, 1] in [0, 1), its log-probability, and all."""
    if torch.compiler.is_compiling() or not usable(logits):
        log_probs = logits.log_softmax(-1)
        index = choose(log_probs, noise)
        return index.squeeze(-1), log_probs.gather(-1, index).squeeze(-1), log_probs
    index, log_prob, log_probs = native.sample(logits.detach(), noise)
    if torch.is_grad_enabled() and logits.requires_grad:
        log_prob, _, log_probs, _ = evaluate_choice(logits, index.unsqueeze(-1))  # the same, with a graph
    return index, log_prob, log_probs


def choose(log_probs: Tensor, noise: Tensor) -> Tensor:
    """The index [N, 1] whose share of the cumulative probability holds the noise [N, 1] in [0, 1)."""
    cumulative = log_probs.exp().cumsum(-1)
    index = (cumulative <= noise * cumulative[..., -1:]).sum(-1, keepdim=True)
    return index.clamp_(max=log_probs.shape[-1] - 1)


@Operator
def evaluate_choice(logits: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of choices [N, 1]: the logarithm of their probability [N], the entropy [N], and all of both kinds [N, W]."""
    if usable(logits):
        return native.evaluate(logits, index)
    log_probs = logits.log_softmax(-1)
    probs = log_probs.exp()
    return log_probs.gather(-1, index).squeeze(-1), -(probs * log_probs).sum(-1), log_probs, probs


@evaluate_choice.register_fake
def _(logits, index):
    rows = logits.new_empty(logits.shape[:-1])
    return rows, torch.empty_like(rows), torch.empty_like(logits), torch.empty_like(logits)


def _remember(ctx, inputs, output) -> None:
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[3])
    ctx.save_for_backward(inputs[1], *output[1:])


def _backward(ctx, d_log_prob, d_entropy, d_log_probs, _):
    index, entropy, log_probs, probs = ctx.saved_tensors
    if usable(probs) and d_log_probs is None and not torch.compiler.is_compiling():
        return native.backward(index, entropy, log_probs, probs, d_log_prob, d_entropy), None
    d_sum, d_logits = torch.zeros_like(entropy).unsqueeze(-1), torch.zeros_like(probs)
    if d_log_prob is not None:
        d_sum += d_log_prob.unsqueeze(-1)
        d_logits.scatter_(-1, index, d_log_prob.unsqueeze(-1))
    if d_log_probs is not None:
        d_sum += d_log_probs.sum(-1, keepdim=True)
        d_logits += d_log_probs
    if d_entropy is not None:
        d_sum = d_sum + (log_probs + entropy.unsqueeze(-1)) * d_entropy.unsqueeze(-1)
    return d_logits.addcmul_(probs, d_sum, value=-1), None


evaluate_choice.register_autograd(_backward, _remember)
