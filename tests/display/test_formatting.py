"""Numbers are short at every magnitude."""

import math

import pytest

from engram.display.formatting import clock, megabytes, number, plural, score


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *((0.0, "0"), (3.1e-7, "3.1e-07"), (0.0123, "0.0123"), (-0.5, "-0.500"), (1.239, "1.24"), (123.4, "123.4")),
        *((12_345.6, "12,346"), (2.5e9, "2.5e+09"), (math.nan, "nan"), (-math.inf, "-inf"), (None, "-")),
    ],
)
def test_numbers_keep_their_significant_digits(value, shown):
    assert number(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(0.8312, "0.83"), (-12.0, "-12.00"), (195.25, "195.2"), (-54_321.0, "-54,321"), (None, "-")]
)
def test_returns_have_two_decimals_while_small(value, shown):
    assert score(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(52.9, "0:52"), (723, "12:03"), (3723, "1:02:03"), (183_845, "2d 03:04:05"), (None, "-")]
)
def test_times_read_like_a_clock(seconds, shown):
    assert clock(seconds) == shown


def test_megabytes_and_plurals():
    assert (megabytes(812.3), megabytes(20_480.0), megabytes(None)) == ("812 MB", "20.0 GB", "-")
    assert (plural(1, "worker"), plural(2_000, "worker")) == ("1 worker", "2,000 workers")
