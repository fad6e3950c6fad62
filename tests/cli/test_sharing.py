"""Threads spin on a machine of their own and sleep on one that is shared; what the user says counts."""

import os

import psutil
import pytest

from engram.cli.sharing import POLICY, SPINS, share_the_machine


@pytest.fixture
def environment(monkeypatch):
    for name in (POLICY, SPINS):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize(("percent", "policy"), [(0.0, None), (10.0, None), (50.0, "PASSIVE"), (100.0, "PASSIVE")])
def test_threads_sleep_where_others_work(environment, percent, policy):
    environment.setattr(psutil, "cpu_percent", lambda interval: percent)
    environment.setattr(psutil, "cpu_count", lambda: 2)
    share_the_machine()
    assert os.environ.get(POLICY) == policy


@pytest.mark.parametrize(("name", "value"), [(POLICY, "ACTIVE"), (SPINS, "1000")])
def test_what_the_user_has_set_is_left_alone(environment, name, value):
    environment.setenv(name, value)
    environment.setattr(psutil, "cpu_percent", lambda interval: 100.0)
    share_the_machine()
    assert os.environ[name] == value
    assert os.environ.get(POLICY) == (value if name == POLICY else None)
