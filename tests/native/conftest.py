"""Fixtures for tests of the kernels."""

from support.kernels import instruction_set as instruction_set
