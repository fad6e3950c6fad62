import math
import os

import pytest

from engram.api.run import Run
from engram.stored.files import UnreadableError
from engram.stored.metrics import Columns, MetricsReader, read_columns, read_metrics


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


def test_a_long_run_keeps_its_extremes_and_means_in_few_buckets():
    columns = Columns(({"steps": 10 * n, "x": 100.0 if n == 777 else float(n % 2)} for n in range(1, 1001)), limit=16)
    column = columns["x"]
    assert len(column.steps) <= 16
    assert (column.epochs.sum(), column.high.max(), column.low.min()) == (1000, 100.0, 0.0)
    assert (column.mean * column.epochs).sum() == 500 - 1 + 100
    assert column.steps[-1] == 10_000
    assert columns.merged


def test_a_short_run_is_kept_as_it_is():
    columns = Columns([{"steps": 1, "x": 3.0}, {"steps": 2}, {"steps": 3, "x": 5}])
    assert columns["x"].steps.tolist() == [1, 3]
    assert columns["x"].mean.tolist() == [3, 5]
    assert not columns.merged


def test_a_metric_that_no_record_has_is_empty():
    assert Columns([{"steps": 1}])["missing"].mean.tolist() == []


def test_values_that_are_not_finite_are_remembered_apart():
    columns = Columns([{"epoch": 1, "steps": 1, "x": 1.0}, {"epoch": 2, "steps": 2, "x": math.nan, "y": math.inf}])
    assert columns.not_finite == {"x": 2, "y": 2}
    assert columns["x"].mean.tolist() == [1.0]


def test_hostile_records_are_bounded(tmp_path):
    many = ", ".join(f'"m{n}": 1' for n in range(5000))
    huge = "9" * 400
    (tmp_path / "metrics.jsonl").write_text(
        f'{{"steps": 1, {many}}}\n{{"steps": {huge}}}\n{{"steps": "many"}}\n{{"steps": true}}\n{{"steps": NaN}}\n'
        f'{{"steps": 2, "m0": {huge}, "m1": 1e300, "m2": [1], "m3": null, "m4": true}}\n'
    )
    columns = read_columns(tmp_path)
    assert len(columns.names) == 1000
    assert columns.epochs == 2
    assert columns.not_finite == {"m1": 2}


def test_the_steps_of_a_run_are_those_of_its_last_record_that_has_them(tmp_path):
    lines = ['{"steps": 96}', '{"steps": "x"}', '{"steps": NaN}', '{"epoch": 4}']
    (tmp_path / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    assert Run(tmp_path).steps == 96
