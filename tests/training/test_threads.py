"""The number of torch threads while learning and while acting."""

import pytest
import torch

from engram.training.device import Threads, number_of_batches


@pytest.mark.parametrize(
    ("threads", "workers", "rows", "batches", "acting"),
    [
        (2, 0, 32, 1, 1),
        (2, 0, 64, 1, 2),
        (2, 0, 384, 1, 2),
        (2, 2, 4096, 2, 1),
        (2, 2, 255, 1, 2),
        (4, 4, 256, 2, 1),
        (64, 32, 8192, 2, 32),
        (64, 32, 512, 2, 8),
        (1, 0, 10_000, 1, 1),
    ],
)
def test_threads_for_acting_depend_on_workers_and_rows(monkeypatch, threads, workers, rows, batches, acting):
    now = [threads]
    monkeypatch.setattr(torch, "get_num_threads", lambda: now[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda number: now.__setitem__(0, number))
    assert number_of_batches(workers, rows) == batches
    with Threads(workers, rows, batches).while_acting():
        assert now == [acting]
    assert now == [threads]


def test_with_one_batch_the_policy_uses_the_cores_of_waiting_workers():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        assert Threads(4, 512, 1).acting == 4
        assert Threads(3, 1024, 2).acting == 1
    finally:
        torch.set_num_threads(before)
