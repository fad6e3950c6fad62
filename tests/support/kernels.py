"""A fixture for tests of the kernels."""

from collections.abc import Iterator

import pytest

from engram.native import library


@pytest.fixture(params=library.instruction_sets())
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """Selects the kernels for each instruction set this processor supports, in turn."""
    kernels = library.kernels()
    assert kernels is not None
    before = kernels.engram_instruction_set().decode()
    library.select_instruction_set(kernels, request.param)
    yield request.param
    library.select_instruction_set(kernels, before)
