"""Audit: does a policy handle its memory correctly, and if not, where is the fault?"""

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
