"""Hostile values and documents: what a stranger, or a damaged disk, may put into a file."""

import random
from collections.abc import Callable
from copy import deepcopy
from typing import Any

MARK = "engram_fuzz_ran_code"  # an attribute of `sys` that code in an input would set
CODE = f"__import__('sys').{MARK}"
HOSTILE: list[Callable[[], Any]] = [
    lambda: None,
    lambda: [],
    lambda: {},
    lambda: "",
    lambda: True,
    lambda: -1,
    lambda: 0,
    lambda: 10**9,
    lambda: 2**63,
    lambda: 10**400,
    lambda: 1e308,
    lambda: float("nan"),
    lambda: float("inf"),
    lambda: "x" * 10_000,
    lambda: "\x00\ud800",
    lambda: "../../../etc/passwd",
    lambda: "/dev/zero",
    lambda: "evil.py:Evil",
    lambda: "os:system",
    lambda: "${oc.env:HOME}",
    lambda: {"_target_": "os.system"},
    lambda: CODE,
    lambda: "</script><script>alert(1)</script><!--",
    lambda: -1e308,
    lambda: [[[[[[[[1]]]]]]]],
    lambda: {"a": {"b": {"c": {}}}},
    lambda: [0] * 1000,
    lambda: {str(i): i for i in range(200)},
    lambda: "linear",
    lambda: 0.5,
    lambda: 3,
]
NUMBER = "9" * 5000
YAML_PARTS = ["a: ", "- ", "[", "]", "{", "}", "&a ", "*a", "<<: ", "!!int ", "!!python/object:os.system ", "|\n", "~"]
YAML_PARTS += ["\n", "  ", "? ", ": ", "1e5", "0x1F", "'", '"', "#", "---\n", "...\n", "%YAML 9\n", "\t", ">\n", NUMBER]
WORDS = ["run", "seed", "env", "env.id", "env.delay", "trainer.ppo.gamma", "trainer.schedule", "py_agent", "agent"]
VALUES = ["1", "recall", "fast", "[1,2", "{a:b}", "null", "''", "1e999", "${a}", "gym", "@", "a:b", "∞", NUMBER]
VALUES += ["{" * 2000]


def mutate(document: Any, chance: random.Random) -> Any:
    """A copy with up to three parts replaced, removed, renamed or moved."""
    document = deepcopy(document)
    for _ in range(chance.randint(1, 3)):
        places = [*_places(document)]
        if not places:
            return chance.choice(HOSTILE)()
        parent, key = chance.choice(places)
        action = chance.random()
        if action < 0.6:
            parent[key] = chance.choice(HOSTILE)()
        elif action < 0.75:
            del parent[key]
        elif action < 0.9:
            other, other_key = chance.choice(places)
            if other_key in other if isinstance(other, dict) else other_key < len(other):
                parent[key] = deepcopy(other[other_key])
        elif isinstance(parent, dict):
            parent[chance.choice(["evil", "kind", "type", "name", 3, ""])] = parent.pop(key)
    return document


def damage(content: bytes, chance: random.Random) -> bytes:
    """A copy with some bytes changed, or cut off."""
    changed = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        changed[chance.randrange(min(len(changed), 600))] = chance.randrange(256)
    return bytes(changed[: chance.randrange(len(changed))] if chance.random() < 0.2 else changed)


def _places(value: Any) -> Any:
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])
