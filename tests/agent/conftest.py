"""What several tests of the kernels need."""

from collections.abc import Iterator

import pytest

from engram.native import library


@pytest.fixture(params=library.kinds())
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """The kernels for each kind of processor that this one can stand in for."""
    kernels = library.kernels()
    assert kernels is not None
    before = kernels.engram_kind().decode()
    library.choose(kernels, request.param)
    yield request.param
    library.choose(kernels, before)
