"""What the tests of environments share: an environment that goes wrong on request, known to workers too."""

from pathlib import Path

import pytest

from engram.env.registry import ADAPTERS


@pytest.fixture
def trouble(monkeypatch: pytest.MonkeyPatch):
    """The settings class of tests/env/fakes/trouble.py."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "fakes"))
    monkeypatch.setitem(ADAPTERS, "trouble", "trouble")
    from trouble import Trouble

    return Trouble
