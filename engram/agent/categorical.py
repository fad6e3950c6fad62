"""The categorical distribution in plain PyTorch: sampling from uniform noise, log-probability and entropy."""

# N rows, W logits

from torch import Tensor


def sample_categorical(logits: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Indices [N] sampled with uniform noise [N, 1], their log-probabilities [N], and all log-probabilities [N, W]."""
    log_probs = logits.log_softmax(-1)
    index = inverse_cdf(log_probs, noise)
    return index.squeeze(-1), log_probs.gather(-1, index).squeeze(-1), log_probs


def evaluate_categorical(logits: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The log-probabilities [N] of the indices [N, 1], the entropy [N], and all log-probabilities [N, W]."""
    log_probs = logits.log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    return log_probs.gather(-1, index).squeeze(-1), entropy, log_probs


def inverse_cdf(log_probs: Tensor, noise: Tensor) -> Tensor:
    """The index [N, 1] at which the cumulative probability exceeds the noise [N, 1] in [0, 1)."""
    cumulative = log_probs.exp().cumsum(-1)
    index = (cumulative <= noise * cumulative[..., -1:]).sum(-1, keepdim=True)
    return index.clamp_(max=log_probs.shape[-1] - 1)
