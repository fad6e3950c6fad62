"""A convolution as large as its input is computed as a matrix product."""

import pytest
import torch
from torch import nn

from engram.agent.encoders.convolution import Conv2d


@pytest.mark.parametrize("size", [(3, 3), (5, 4)], ids=["one cell", "several cells"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_values_and_gradients_equal_those_of_torch(size, layout) -> None:
    torch.manual_seed(0)
    ours, theirs = Conv2d(6, 7, (3, 3)), nn.Conv2d(6, 7, (3, 3))
    theirs.load_state_dict(ours.state_dict())
    results = []
    for layer in (ours, theirs):
        box = torch.linspace(-1, 1, 4 * 6 * size[0] * size[1]).view(4, 6, *size).contiguous(memory_format=layout)
        box.requires_grad_()
        output = layer(box)
        output.square().sum().backward()
        results.append([output, box.grad, *(parameter.grad for parameter in layer.parameters())])
    for mine, other in zip(*results, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-4)
