"""The value of `NAME=VALUE`: numbers, true, false, null, bare or quoted text, [lists] and {names:values}."""

import re
from typing import Any, NoReturn

INTEGER = r"(?:0|[1-9](?:_?[0-9])*)"
DECIMAL = rf"(?:{INTEGER}\.|{INTEGER}?\.[0-9](?:_?[0-9])*)"
INTEGER_TEXT = re.compile(rf"[+-]?{INTEGER}")
FLOAT_TEXT = re.compile(
    rf"[+-]?(?:{DECIMAL}|(?:{DECIMAL}|{INTEGER})e[+-]?[0-9](?:_?[0-9])*|inf|nan)", flags=re.IGNORECASE
)
CONSTANTS = {"null": None, "true": True, "false": False}

ESCAPE = r"\\[\\()\[\]{}:=, \t]"
BARE_TEXT = re.compile(rf"(?:{ESCAPE}|[^()\[\]{{}},='\"])+")
BARE_KEY = re.compile(rf"(?:{ESCAPE}|[^()\[\]{{}},='\":])+")
CLASS_KEY = re.compile(r"[\w.]+:[A-Za-z_]\w*(?=[ \t]*:)")  # package.module:Class
QUOTED_TEXT = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", flags=re.DOTALL)


def read_value(text: str) -> Any:
    """Read one value; raise `ValueError` with the reason if that is not possible.

    >>> read_value("{kind:linear,to:0,steps:[1_000,2e3,'a, b']}")
    {'kind': 'linear', 'to': 0, 'steps': [1000, 2000.0, 'a, b']}
    """
    return _Reader(text).read_all()


class _Reader:
    """A recursive-descent parser: each method reads one thing at `position` and moves past it."""

    def __init__(self, text: str):
        self.text = text
        self.position = 0

    def read_all(self) -> Any:
        value = self.read_element()
        if self.skip(","):
            raise ValueError("several values")
        if self.position < len(self.text):
            self.fail()
        return value

    def read_element(self) -> Any:
        self.skip("")
        if self.skip("["):
            return self.read_list()
        if self.skip("{"):
            return self.read_mapping()
        return self.read_text(BARE_TEXT)

    def read_list(self) -> list[Any]:
        values: list[Any] = []
        while not self.skip("]"):
            if values:
                self.expect(",")
            values.append(self.read_element())
        return values

    def read_mapping(self) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        while not self.skip("}"):
            if values:
                self.expect(",")
            key = self.read_text(CLASS_KEY if CLASS_KEY.match(self.text, self.position) else BARE_KEY)
            self.expect(":")
            values[key] = self.read_element()
        return values

    def read_text(self, pattern: re.Pattern[str]) -> Any:
        """Quoted text, or bare text of this pattern."""
        if quoted := QUOTED_TEXT.match(self.text, self.position):
            self.position = quoted.end()
            self.skip("")
            return _unquote(quoted[0])
        bare = pattern.match(self.text, self.position)
        if bare is None or not bare[0].strip():
            self.fail()
        self.position = bare.end()
        return _typed(bare[0])

    def skip(self, mark: str) -> bool:
        """Move past the mark and the blanks around it, if it is next."""
        found = re.compile(rf"[ \t]*{re.escape(mark)}[ \t]*").match(self.text, self.position)
        if found:
            self.position = found.end()
        return found is not None

    def expect(self, mark: str) -> None:
        if not self.skip(mark):
            self.fail(f", expected '{mark}'")

    def fail(self, expected: str = "") -> NoReturn:
        rest = self.text[self.position :]
        raise ValueError((f"unexpected '{rest[0]}'" if rest else "it ends too early") + expected)


def _typed(bare: str) -> Any:
    """Bare text as the constant or number it spells, otherwise as text without its escapes."""
    text = re.sub(r"(?<!\\)((?:\\\\)*)[ \t]+$", r"\1", bare.lstrip(" \t"))
    if text.lower() in CONSTANTS:
        return CONSTANTS[text.lower()]
    if INTEGER_TEXT.fullmatch(text):
        return int(text)
    if FLOAT_TEXT.fullmatch(text):
        return float(text)
    return re.sub(ESCAPE, lambda escape: escape[0][1], text)


def _unquote(quoted: str) -> str:
    """The text between the quotes. Backslashes escape only a quote of the same kind and each other before one."""
    mark, text = quoted[0], quoted[1:-1]
    return re.sub(rf"\\+(?={mark}|$)", lambda slashes: slashes[0][: len(slashes[0]) // 2], text)
