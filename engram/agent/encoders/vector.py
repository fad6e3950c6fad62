"""Encoders for observations that are not tokens: flat vectors and images."""

# N rows, H x W pixels, C channels

import math

import torch
from torch import Tensor, nn

from engram.agent.encoders.convolution import fit_convolution
from engram.agent.initialisation import initialise
from engram.agent.normalization import ObservationNormalizer

IMAGE_CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels, kernel, stride


class VectorEncoder(nn.Module):
    """A vector [N, size], normalised, to features [N, output_size]: two linear layers, ReLU after each."""

    def __init__(self, size: int, output_size: int = 128, hidden_size: int = 128) -> None:
        super().__init__()
        self.normalizer = ObservationNormalizer(size)
        self.linear1 = initialise(nn.Linear(size, hidden_size), "relu")
        self.linear2 = initialise(nn.Linear(hidden_size, output_size), "relu")

    def forward(self, vectors: Tensor) -> Tensor:
        x = self.normalizer(vectors.to(self.linear1.weight.dtype))
        return self.linear2(self.linear1(x).relu_()).relu_()


class ImageEncoder(nn.Module):
    """An image [N, H, W, C] to features [N, output_size]: three convolutions and a linear layer, ReLU after each.

    Bytes are divided by 255, other dtypes are not scaled. In small images kernels and strides shrink until each
    convolution leaves 3 cells a side (`fit_convolution`).
    """

    def __init__(self, shape: tuple[int, int, int], output_size: int = 128) -> None:
        super().__init__()
        height, width, inputs = shape
        size, convolutions = (height, width), []
        for channels, kernel, stride in IMAGE_CONVOLUTIONS:
            sizes = fit_convolution(size, kernel, stride, leave=3)
            convolution = nn.Conv2d(inputs, channels, sizes.kernel, sizes.stride)
            convolutions += [initialise(convolution, "relu"), nn.ReLU()]
            size, inputs = sizes.output, channels
        self.convolutions = nn.Sequential(*convolutions)
        self.linear = initialise(nn.Linear(inputs * math.prod(size), output_size), "relu")

    def forward(self, images_NHWC: Tensor) -> Tensor:
        x = images_NHWC.to(self.linear.weight.dtype)
        if images_NHWC.dtype == torch.uint8:
            x = x / 255
        x = self.convolutions(x.permute(0, 3, 1, 2))
        return self.linear(x.flatten(1)).relu()
