"""Audit: does a policy handle its memory correctly, and if not, where is the fault?

The package can be called: that is `engram.audit`.

>>> import engram
>>> report = engram.audit("fast", env="recall", only=["replay"])
>>> report.passed
True
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from engram.audit.result import AuditError, AuditReport, CheckResult
from engram.audit.run import (
    MemoryFaultError,
    assert_memory_is_right,
    cheap_checks,
    check,
    run_audit,
    stop_on_memory_fault,
)

__all__ = [
    "AuditError",
    "AuditReport",
    "CheckResult",
    "MemoryFaultError",
    "assert_memory_is_right",
    "cheap_checks",
    "check",
    "run_audit",
    "stop_on_memory_fault",
]


class _Audit(ModuleType):
    """Importing this package hides a function `engram.audit`, so the package itself is that function."""

    __module__ = __name__

    def __call__(self, *arguments: Any, **options: Any) -> AuditReport:
        return import_module("engram.api.audit").audit(*arguments, **options)


if not TYPE_CHECKING:
    sys.modules[__name__].__class__ = _Audit
