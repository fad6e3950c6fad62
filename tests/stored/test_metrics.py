import os

import pytest

from engram.api.run import Run
from engram.stored.files import UnreadableError
from engram.stored.metrics import MetricsReader, read_metrics


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


def test_a_reader_gives_each_record_once_and_leaves_half_lines(tmp_path):
    file, reader = tmp_path / "metrics.jsonl", MetricsReader(tmp_path)
    assert list(reader.new_records()) == []
    file.write_text('{"epoch": 1}\n{"epo')
    assert list(reader.new_records()) == [{"epoch": 1}]
    file.write_text('{"epoch": 1}\n{"epoch": 2}\n')
    assert list(reader.new_records()) == [{"epoch": 2}]
    assert not reader.rewound()


def test_a_reader_starts_over_when_a_resumed_run_has_dropped_records(tmp_path):
    file, reader = tmp_path / "metrics.jsonl", MetricsReader(tmp_path)
    file.write_text('{"epoch": 1}\n{"epoch": 2, "x": 1}\n')
    list(reader.new_records())
    file.write_text('{"epoch": 1}\n{"epoch": 2, "x": 2}\n{"epoch": 3}\n')  # as long as before, and longer
    assert reader.rewound()
    assert [record["epoch"] for record in reader.new_records()] == [1, 2, 3]


def test_the_steps_of_a_run_are_those_of_its_last_record_that_has_them(tmp_path):
    lines = ['{"steps": 96}', '{"steps": "x"}', '{"steps": NaN}', '{"epoch": 4}']
    (tmp_path / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    assert Run(tmp_path).steps == 96
