"""A convolution that knows when it is none: a kernel as large as its input is one matrix product."""

# N rows, C channels, H x W cells

from torch import Tensor, nn
from torch.nn import functional


class Conv2d(nn.Conv2d):
    """`nn.Conv2d` without padding, several times faster where its output is one cell."""

    def forward(self, box_NCHW: Tensor) -> Tensor:
        if tuple(box_NCHW.shape[-2:]) != self.kernel_size:
            return super().forward(box_NCHW)
        # Channels innermost: so they come out of the convolution before, and nothing has to be moved.
        rows, weight = box_NCHW.permute(0, 2, 3, 1).flatten(1), self.weight.permute(0, 2, 3, 1).flatten(1)
        return functional.linear(rows, weight, self.bias)[..., None, None]
