import math

from engram.stored.columns import Columns, read_columns


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
