"""A convolution that knows when it is none: a kernel as large as its input is one matrix product."""

# N rows, C channels, H x W cells

from torch import Tensor, nn
from torch.nn import functional

from engram.agent.layers import relu_of


class Conv2d(nn.Conv2d):
    """`nn.Conv2d` without padding, several times faster where its output is one cell."""

    def forward(self, box_NCHW: Tensor) -> Tensor:
        if not self._is_product(box_NCHW):
            return super().forward(box_NCHW)
        return functional.linear(*self._factors(box_NCHW), self.bias)[..., None, None]

    def with_relu(self, box_NCHW: Tensor) -> Tensor:
        """The same, and ReLU."""
        if not self._is_product(box_NCHW) or self.bias is None:
            return self(box_NCHW).relu_()
        return relu_of(*self._factors(box_NCHW), self.bias)[..., None, None]

    def _is_product(self, box_NCHW: Tensor) -> bool:
        return tuple(box_NCHW.shape[-2:]) == self.kernel_size

    def _factors(self, box_NCHW: Tensor) -> tuple[Tensor, Tensor]:
        """Rows and weights, channels innermost: so they come out of the convolution before, and no row is moved."""
        return box_NCHW.permute(0, 2, 3, 1).flatten(1), self.weight.permute(0, 2, 3, 1).flatten(1)
