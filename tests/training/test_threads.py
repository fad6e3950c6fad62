"""How many threads torch has: all to learn, and to act as many as workers leave and rows are worth."""

import pytest
import torch

from engram.training.threads import Threads


@pytest.mark.parametrize(
    ("threads", "workers", "rows", "acting"),
    [(2, 0, 64, 1), (2, 0, 384, 2), (2, 2, 4096, 1), (64, 32, 4096, 32), (64, 32, 1024, 8), (1, 0, 10_000, 1)],
)
def test_acting_takes_what_workers_leave_and_rows_are_worth(monkeypatch, threads, workers, rows, acting):
    now = [threads]
    monkeypatch.setattr(torch, "get_num_threads", lambda: now[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda number: now.__setitem__(0, number))
    with Threads(workers, rows).while_acting():
        assert now == [acting]
    assert now == [threads]
