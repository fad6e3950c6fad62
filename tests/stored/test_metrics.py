import os

import pytest

from engram.stored.files import UnreadableError
from engram.stored.metrics import read_metrics


def test_lines_that_are_no_records_are_left_out(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"epoch": 1}\n3\n{"epo\n{"epoch": 2}\n{"epoch": 3}'
    )  # the last is half written
    assert read_metrics(tmp_path) == [{"epoch": 1}, {"epoch": 2}]


def test_a_run_without_metrics_has_no_records(tmp_path):
    assert read_metrics(tmp_path) == []


def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(UnreadableError, match=r"metrics\.jsonl"):
        read_metrics(tmp_path)
