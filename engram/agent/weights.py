"""Weight clipping, the L2-init loss, and weight metrics.

All work on the layers that `weight_layers` finds in a module: Linear, convolutions, and recurrent cores, which are
recognised by the names of their parameters (`weight_ih_l0` and so on, as in `torch.nn.LSTM`). A parameter `bias`
beside a Linear layer belongs to it. Normalisations, embeddings, query tokens and standard deviations are left out: they
do not multiply activations, or begin at 1.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

RECURRENT_PARAMETER = re.compile(r"(weight|bias)_(ih|hh)_l\d+")
COLLAPSED = 1e-3  # a dimension is collapsed if its singular value is at most this fraction of the largest


@dataclass(frozen=True)
class WeightOptions:
    """Options of one layer."""

    clip_scale: float = 1.0  # times the policy's clip range
    l2_init_scale: float = 1.0  # times its squared distance from the initial weights
    analyze_weights: bool = True  # report norms and singular values
    effective_rank: bool = True  # report effective ranks


@dataclass(frozen=True)
class WeightLayer:
    """A layer's parameters by full name, and its options."""

    name: str
    parameters: dict[str, nn.Parameter]
    options: WeightOptions = field(default_factory=WeightOptions)


def weight_layers(module: nn.Module, options: Mapping[str, WeightOptions] | None = None) -> list[WeightLayer]:
    """The layers of a module. Options apply to the named submodule and everything in it; the innermost wins."""
    layers = []
    for name, submodule in module.named_modules():
        parameters = {f"{name}.{key}".lstrip("."): value for key, value in _layer_parameters(submodule).items()}
        if parameters:
            layers.append(WeightLayer(name, parameters, _innermost(name, options or {})))
    return layers


@torch.no_grad()
def clip_weights(layers: Iterable[WeightLayer], clip_range: float) -> None:
    """Clamp weights and biases in place to ± clip_range times the layer's scale; a range of 0 does nothing."""
    if clip_range <= 0:
        return
    by_bound: dict[float, list[Tensor]] = defaultdict(list)
    for layer in layers:
        by_bound[clip_range * layer.options.clip_scale].extend(layer.parameters.values())
    for bound, parameters in by_bound.items():
        torch._foreach_clamp_min_(parameters, -bound)
        torch._foreach_clamp_max_(parameters, bound)


class L2Init(nn.Module):
    """The squared distance of the weights from their initial values, as a loss.

    The initial values are copied at the first use, and again at every `update_copy`. The copies are buffers, saved with
    the policy; loading a state dict creates or removes them to match it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(_match_saved_buffers)

    def loss(self, layers: Iterable[WeightLayer]) -> Tensor:
        """The sum over weights and biases, weighted by each layer's `l2_init_scale`, with a gradient to the weights."""
        terms = []
        for layer in layers:
            for name, parameter in layer.parameters.items():
                distance = (parameter - self._copy_of(name, parameter)).square().sum()
                terms.append(layer.options.l2_init_scale * distance)
        return torch.stack(terms).sum() if terms else torch.zeros(())

    def update_copy(self, layers: Iterable[WeightLayer]) -> None:
        """Measure the distance from the current weights from now on."""
        for layer in layers:
            for name, parameter in layer.parameters.items():
                self._copy_of(name, parameter).copy_(parameter.detach())

    def _copy_of(self, name: str, parameter: nn.Parameter) -> Tensor:
        buffer = name.replace(".", "/")  # buffer names cannot have dots
        if buffer not in self._buffers:
            self.register_buffer(buffer, parameter.detach().clone())
        copy = self.get_buffer(buffer).to(parameter.detach())  # a loaded one may be on another device
        self.register_buffer(buffer, copy)
        return copy


@torch.no_grad()
def weight_metrics(layers: Iterable[WeightLayer]) -> dict[str, float]:
    """Metrics of every weight matrix, by `parameter/metric`.

    `norm` (Frobenius), `largest_singular`, `smallest_singular`, `collapsed` (number of dimensions), `effective_rank`
    (exponential of the entropy of the singular values) and `rank_99` (how many of them make up 99% of their sum).
    """
    measured: dict[str, Tensor] = {}
    for layer in layers:
        if not layer.options.analyze_weights and not layer.options.effective_rank:
            continue
        for name, parameter in layer.parameters.items():
            if parameter.dim() >= 2:
                singular = singular_values(parameter)
                values = _norms(singular) if layer.options.analyze_weights else {}
                values |= _ranks(singular) if layer.options.effective_rank else {}
                nan = 0 * singular[0]  # so that counts become NaN too, instead of looking healthy
                measured |= {f"{name}/{metric}": value + nan for metric, value in values.items()}
    if not measured:
        return {}
    return dict(zip(measured, torch.stack(list(measured.values())).tolist(), strict=True))  # one transfer to the host


def singular_values(weight: Tensor) -> Tensor:
    """Singular values of the weight as a matrix [outputs, inputs], descending; NaN if a weight is not finite."""
    matrix = weight.flatten(1).float()
    values = torch.linalg.svdvals(matrix.nan_to_num(0, 0, 0))
    return torch.where(matrix.isfinite().all(), values, torch.nan)


def _norms(singular: Tensor) -> dict[str, Tensor]:
    return {
        "norm": singular.square().sum().sqrt(),
        "largest_singular": singular[0],
        "smallest_singular": singular[-1],
        "collapsed": (singular <= COLLAPSED * singular[0]).sum().float(),
    }


def _ranks(singular: Tensor) -> dict[str, Tensor]:
    fractions = singular / singular.sum().clamp(min=torch.finfo(singular.dtype).tiny)
    return {
        "effective_rank": torch.special.entr(fractions).sum().exp(),
        "rank_99": (fractions.cumsum(0) < 0.99 * fractions.sum()).sum().float() + 1,
    }


def _layer_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    own = dict(module.named_parameters(recurse=False))
    if isinstance(module, nn.Linear | _ConvNd):
        return own
    has_linear = any(isinstance(child, nn.Linear) for child in module.children())
    return {
        name: parameter
        for name, parameter in own.items()
        if RECURRENT_PARAMETER.fullmatch(name) or (name == "bias" and has_linear)
    }


def _innermost(name: str, options: Mapping[str, WeightOptions]) -> WeightOptions:
    while name not in options and name:
        name = name.rpartition(".")[0]
    return options.get(name, WeightOptions())


def _match_saved_buffers(module: nn.Module, state_dict: Mapping[str, Any], prefix: str, *_: Any) -> None:
    saved = {key.removeprefix(prefix): value for key, value in state_dict.items() if key.startswith(prefix)}
    for name in [name for name in module._buffers if name not in saved]:
        delattr(module, name)
    for name, value in saved.items():
        if name not in module._buffers:
            module.register_buffer(name, torch.empty_like(value))
