"""Audit: is a policy's memory handled right, and if not, where is it wrong?"""

from engram.audit.live import MemoryWrongError, stop_if_wrong
from engram.audit.result import AuditError, CheckResult, Report
from engram.audit.run import assert_memory_is_right, cheap_checks, check, run_audit

__all__ = [
    "AuditError",
    "CheckResult",
    "MemoryWrongError",
    "Report",
    "assert_memory_is_right",
    "cheap_checks",
    "check",
    "run_audit",
    "stop_if_wrong",
]
