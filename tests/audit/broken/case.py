"""A broken policy and the checks that must say so, all of them and no others."""

from collections.abc import Callable
from typing import Any, NamedTuple

from gymnasium import spaces
from support.playing import token_spec, vector_env

from engram.audit.context import AuditSizes


class Case(NamedTuple):
    policy: Callable[..., Any]  # made with an environment
    checks: set[str]
    said: str = ""  # part of what the first of them, by name, finds
    env: Any = vector_env()


TOKENS = token_spec()
SEVERAL = vector_env(actions=spaces.MultiDiscrete([3, 2]))
TINY = AuditSizes(rows=6, horizon=6, steps=12)  # where sizes do not matter
