"""Kernels in C behind operators that PyTorch alone can compute too: faster on CPUs, never needed."""
