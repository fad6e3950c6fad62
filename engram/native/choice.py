"""Categorical choices by the kernels: the arithmetic of `engram.agent.categorical`, float32 on the CPU."""

# N rows, W logits

import torch
from torch import Tensor

from engram.native.library import loaded
from engram.native.shapes import expect
from engram.native.threads import threads_for

NUMBERS_PER_THREAD = 8192  # fewer are not worth waking one for


def evaluate(logits: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of the choices [N, 1]: the logarithm of their probability [N], the entropy [N], and all of both kinds [N, W]."""
    return _choices(logits.contiguous(), None, index.reshape(len(logits)).contiguous())


def sample(logits: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Choices [N] by the noise [N, 1], the logarithms of their probabilities [N] and of all [N, W]."""
    index = logits.new_empty(len(logits), dtype=torch.long)
    log_prob, _, log_probs, _ = _choices(logits.contiguous(), noise.float().reshape(len(logits)).contiguous(), index)
    return index, log_prob, log_probs


def backward(
    index: Tensor,
    entropy: Tensor,
    log_probs: Tensor,
    probs: Tensor,
    d_log_prob: Tensor | None,
    d_entropy: Tensor | None,
) -> Tensor:
    """The gradient of the logits."""
    d_logits, index = probs.new_empty(probs.shape), index.reshape(len(probs))
    of_rows = {"entropy": entropy, "d_log_prob": d_log_prob, "d_entropy": d_entropy}
    _check(index, {"log_probs": log_probs, "probs": probs}, of_rows)
    tensors = [index, log_probs, probs, entropy, d_log_prob, d_entropy]
    held = [None if each is None else each.contiguous() for each in tensors]
    _run("engram_choices_backward", [*held, d_logits], probs)
    return d_logits


def _choices(logits: Tensor, noise: Tensor | None, index: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _check(index, {"logits": logits}, {"noise": noise})
    log_prob, entropy = logits.new_empty(logits.shape[0]), logits.new_empty(logits.shape[0])
    log_probs, probs = torch.empty_like(logits), torch.empty_like(logits)
    if _run("engram_choices", [logits, noise, index, log_prob, entropy, log_probs, probs], logits):
        found = f"{int(index.min())} to {int(index.max())}"
        raise IndexError(f"actions must be from 0 to {logits.shape[1] - 1}, got some from {found}")
    return log_prob, entropy, log_probs, probs


def _check(index: Tensor, of_choices: dict[str, Tensor], of_rows: dict[str, Tensor | None]) -> None:
    rows, width = next(iter(of_choices.values())).shape
    if not width:
        raise ValueError("choices: there must be a logit at least")
    expect("choices", {"index": index}, {"index": (rows,)}, torch.long)
    expect("choices", of_choices, dict.fromkeys(of_choices, (rows, width)))
    expect("choices", of_rows, dict.fromkeys(of_rows, (rows,)))


def _run(name: str, tensors: list[Tensor | None], logits: Tensor) -> int:
    rows, width = logits.shape
    pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    return getattr(loaded(), name)(*pointers, width, rows, threads_for(rows * width, NUMBERS_PER_THREAD))
