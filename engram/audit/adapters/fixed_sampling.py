"""Fixed sampling: actions that depend on the distribution alone, so that a row gets the same one in any batch."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_cumsum, _full = torch.cumsum, torch.full


@contextmanager
def fixed_sampling() -> Iterator[None]:
    """Within this, torch's samplers return quantiles: the median action, the mean of a normal distribution."""
    patches: list[tuple[Any, str, Any]] = [
        (torch, "multinomial", _multinomial),
        (torch.Tensor, "multinomial", _multinomial),
        (torch.Tensor, "exponential_", lambda tensor, *_, **__: tensor.fill_(1.0)),
        (torch, "normal", _normal),
        (torch, "rand", _rand),
    ]
    before = [(owner, name, owner.__dict__.get(name)) for owner, name, _ in patches]
    for owner, name, replacement in patches:
        setattr(owner, name, replacement)
    try:
        yield
    finally:
        for owner, name, original in before:
            delattr(owner, name) if original is None else setattr(owner, name, original)


def _multinomial(weights: Tensor, num_samples: int = 1, *_: Any, **__: Any) -> Tensor:
    cumulative = _cumsum(weights.detach().double(), -1)
    quantiles = (torch.arange(num_samples, device=weights.device) + 0.5) / num_samples
    targets = cumulative[..., -1:] * quantiles
    return torch.searchsorted(cumulative, targets).clamp(max=weights.shape[-1] - 1)


def _normal(mean: Any, std: Any = 1.0, *size: Any, **__: Any) -> Tensor:
    if isinstance(mean, Tensor):
        return mean.clone()
    return std * 0 + mean if isinstance(std, Tensor) else _full(size[0], float(mean))


def _rand(*size: Any, **options: Any) -> Tensor:
    options.pop("generator", None)
    return _full(tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size, 0.5, **options)
