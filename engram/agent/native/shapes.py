"""What is asked of a tensor before a kernel is told where it lies: kernels read and write all that they are told."""

from collections.abc import Mapping

import torch
from torch import Tensor

Shape = tuple[int, ...]


def expect(kernel: str, tensors: Mapping[str, tuple[Tensor | None, Shape]], dtype: torch.dtype = torch.float32) -> None:
    """Raises unless each tensor that there is has the shape beside it, and this dtype, on the CPU."""
    for name, (tensor, shape) in tensors.items():
        if tensor is not None and (tensor.shape != shape or tensor.dtype != dtype or not tensor.is_cpu):
            raise ValueError(
                f"{kernel}: {name} must be {list(shape)} of {dtype} on the CPU, "
                f"got {list(tensor.shape)} of {tensor.dtype} on {tensor.device}"
            )
