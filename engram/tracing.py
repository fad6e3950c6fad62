"""Whether PyTorch is recording a computation as a graph."""

import torch


def is_traced() -> bool:
    """Whether a graph is being recorded, by `torch.compile` or for export: shapes and branches become part of it."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def is_exported() -> bool:
    """Whether a graph is being recorded for export, by `torch.export`, `torch.onnx` or `torch.jit.trace`.

    It must hold PyTorch's own operators only. What a kernel computes would be a constant in it.
    """
    return torch.compiler.is_exporting() or torch.jit.is_tracing()
