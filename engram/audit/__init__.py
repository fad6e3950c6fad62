"""Audit: is a policy's memory handled right, and if not, where is it wrong?"""

from engram.audit.result import AuditError, CheckResult, Report
from engram.audit.run import assert_memory_is_right, cheap_checks, check, run_audit

__all__ = ["AuditError", "CheckResult", "Report", "assert_memory_is_right", "cheap_checks", "check", "run_audit"]
