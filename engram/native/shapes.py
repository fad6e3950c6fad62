"""What is asked of a tensor before a kernel is told where it lies: kernels read and write all that they are told."""

from collections.abc import Mapping

import torch
from torch import Tensor

Shape = tuple[int, ...]


def expect(
    kernel: str,
    tensors: Mapping[str, Tensor | None],
    shapes: Mapping[str, Shape],
    dtype: torch.dtype = torch.float32,
) -> None:
    """Raises unless each tensor that there is has the shape of that name, and this dtype, on the CPU."""
    for name, tensor in tensors.items():
        if tensor is not None and (tensor.shape != shapes[name] or tensor.dtype is not dtype or not tensor.is_cpu):
            raise ValueError(
                f"{kernel}: {name} must be {list(shapes[name])} of {dtype} on the CPU, "
                f"got {list(tensor.shape)} of {tensor.dtype} on {tensor.device}"
            )
