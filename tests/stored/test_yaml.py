"""YAML of a stranger: bounded before it is loaded."""

import pytest

from engram.stored.files import UnreadableError, parse_yaml

# In base 60 the time is quadratic, and hexadecimal numbers have no limit of digits until they are shown.
LONG = ["1" + ":1" * 300_000, "0x" + "f" * 500_000, f'!!int "0b{"1" * 5000}"', "9" * 5000, f"1e{'9' * 5000}"]


@pytest.mark.parametrize("text", LONG, ids=["base 60", "hexadecimal", "binary", "decimal", "exponent"])
def test_numbers_of_thousands_of_digits_are_refused_at_once(text):
    with pytest.raises(UnreadableError, match="a number of over 1000 characters"):
        parse_yaml(f"seed: {text}", "settings.yaml")


def test_times_and_long_texts_are_read_as_before():
    long = "1" * 2000
    assert parse_yaml(f"a: 1:30:00\nb: '{long}'\nc: {long}g", "x") == {"a": 5400, "b": long, "c": f"{long}g"}
