"""Random observations that an environment might show, for any spec."""

import numpy as np
import torch
from torch import Tensor

from engram.env.spec import EMPTY_LOCATION, GLOBAL_LOCATION, EnvSpec


def random_observations(spec: EnvSpec, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """[*shape, …] in the dtype of the space."""
    if spec.observation_kind == "tokens":
        return _tokens(spec, shape, generator)
    space = spec.single_observation_space
    full = (*shape, *space.shape)
    if np.issubdtype(space.dtype, np.integer):
        smallest, largest = int(space.low.min()), min(int(space.high.max()), 2**31)
        drawn = torch.randint(smallest, largest + 1, full, generator=generator)
        return drawn.to(torch.from_numpy(np.zeros(1, space.dtype)).dtype)
    low, high = torch.as_tensor(space.low).float(), torch.as_tensor(space.high).float()
    normal, uniform = torch.randn(full, generator=generator), torch.rand(full, generator=generator)
    width = high - low
    bounded = width.isfinite() & (width < 100)  # wider ones say what could be, not what is usual
    drawn = torch.where(bounded, low.nan_to_num() + uniform * width.nan_to_num(posinf=0.0), normal)
    return drawn.to(torch.from_numpy(np.zeros(1, space.dtype)).dtype)


def _tokens(spec: EnvSpec, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """(location, feature, value): the first about the agent itself, most on the grid, the last ones empty."""
    count, (height, width) = spec.single_observation_space.shape[0], spec.window
    ids = torch.tensor([feature.id for feature in spec.features])
    largest = torch.tensor([min(2 * max(int(feature.normalization), 1), 255) for feature in spec.features])

    def draw(below: int) -> Tensor:
        return torch.randint(below, (*shape, count), generator=generator)

    location = draw(height) * 16 + draw(width)
    location[..., 0] = GLOBAL_LOCATION
    feature = draw(len(ids))
    value = 1 + (torch.rand((*shape, count), generator=generator) * (largest[feature] - 1)).long()
    tokens = torch.stack([location, ids[feature], value], -1).to(torch.uint8)
    used = torch.randint(min(4, count), count + 1, (*shape, 1), generator=generator)
    tokens[torch.arange(count).expand(*shape, count) >= used] = EMPTY_LOCATION
    return tokens
