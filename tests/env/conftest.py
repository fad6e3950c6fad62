"""Fixtures of the environment tests: an environment that fails on request, also in workers."""

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
