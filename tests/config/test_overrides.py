"""The value grammar of the command line."""

import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram.config.overrides import read_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("3", 3), ("-20", -20), ("1_000", 1000), ("0", 0), ("007", "007"), ("1__0", "1__0")),
        *(("1e5", 1e5), (".5", 0.5), ("5.", 5.0), ("-1.5E-3", -0.0015), ("INF", math.inf), ("infinity", "infinity")),
        *(("true", True), ("False", False), ("null", None), ("nullable", "nullable"), ("off", "off")),
        *((" a b ", "a b"), ("a:b", "a:b"), ("ALE/Pong-v5", "ALE/Pong-v5"), (r"a\,b\=c", "a,b=c"), (r"a\b", r"a\b")),
        *(("'1e5'", "1e5"), ('"a, b"', "a, b"), (r"'it\'s'", "it's"), (r"'a\\'", "a\\"), (r"'a\nb'", r"a\nb")),
        *(("[]", []), ("[a, 'b c' , 3]", ["a", "b c", 3]), ("[[1],[]]", [[1], []]), ("{}", {})),
        ("{kind:linear, to : 0,deep:{a:[x:y]}}", {"kind": "linear", "to": 0, "deep": {"a": ["x:y"]}}),
        ("{'a b':1, my.wrappers:Noise: {scale: 2}}", {"a b": 1, "my.wrappers:Noise": {"scale": 2}}),
        ("{optimizer.learning_rate:{to:0}}", {"optimizer.learning_rate": {"to": 0}}),
    ],
)
def test_a_value_has_the_type_it_is_written_as(text, value):
    assert read_value(text) == value
    assert type(read_value(text)) is type(value)


@pytest.mark.parametrize("text", ["[1", "[1,]", "[,1]", "{a}", "{a:}", "{a:1", "'open", "a'b", "f(1)", "a=b", " "])
def test_text_with_other_marks_needs_quotes(text):
    with pytest.raises(ValueError, match=r"unexpected|ends too early"):
        read_value(text)


@pytest.mark.parametrize("text", ["1,2", "a , b", "[1],2"])
def test_several_values_are_recognised(text):
    with pytest.raises(ValueError, match=r"^several values$"):
        read_value(text)


def write(value: object) -> str:
    """A value as a careful user types it."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}: {write(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(write, value)) + "]"
    if isinstance(value, str):
        return quote(value)
    return "null" if value is None else str(value)


def quote(text: str) -> str:
    for mark in "'\"":
        if mark not in text and not text.endswith("\\"):
            return f"{mark}{text}{mark}"
    return "''"


KEYS = st.from_regex(r"[a-z_][a-z0-9_.]*", fullmatch=True).filter(lambda key: isinstance(read_value(key), str))
TEXT = st.text().filter(lambda text: quote(text)[1:-1] == text)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4))


@given(VALUES)
def test_written_values_read_back_the_same(value):
    assert read_value(write(value)) == value


@given(st.text())
def test_any_text_is_a_value_or_a_value_error(text):
    with suppress(ValueError):
        read_value(text)
