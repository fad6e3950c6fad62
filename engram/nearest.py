"""Suggests the known name nearest to a mistyped one."""

from collections.abc import Iterable
from difflib import SequenceMatcher

MAX_LENGTH = 100  # of a word that may be a name; the time to compare grows with its square
LIKENESS = 0.6  # below this a suggestion confuses more than it helps


def nearest(word: str, names: Iterable[str], likeness: float = LIKENESS) -> str | None:
    """The most similar name, or None. Dotted names are compared whole and by their last part."""
    if not 0 < len(word) <= MAX_LENGTH:
        return None
    scored = [(_likeness(word, name), name) for name in names]
    score, name = max(scored, key=lambda pair: (pair[0], -len(pair[1])), default=(0.0, ""))
    return name if score >= likeness else None


def suggestion(word: str, names: Iterable[str], likeness: float = LIKENESS, otherwise: str = "") -> str:
    """The end of an error message: "; did you mean NAME?", or `otherwise` if no name is near."""
    name = nearest(word, names, likeness)
    return f"; did you mean {name}?" if name else otherwise


def _likeness(word: str, name: str) -> float:
    word, name = (text.lower().replace("/", ".") for text in (word, name))  # settings are a.b, metrics a/b
    last_word, last_name = word.rpartition(".")[2], name.rpartition(".")[2]
    whole, last = _ratio(word, name), _ratio(last_word, last_name)
    # The last part matters most (`trainer.learning_rte`); the rest tells equal last parts apart (`env.agents`).
    return max(whole, 0.9 * last + 0.1 * whole, float(_initials(last_name) == last_word))


def _ratio(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other, autojunk=False).ratio()


def _initials(name: str) -> str:
    """`lr` for `learning_rate`; empty for a single word."""
    words = name.split("_")
    return "".join(word[:1] for word in words) if len(words) > 1 else ""
