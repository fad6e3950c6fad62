"""A pytest plugin: `pytest --engram-audit package.module:Class` runs every check of the audit as a test."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from engram.audit.result import AuditReport, CheckResult


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("engram", "Engram")
    group.addoption(
        "--engram-audit", action="append", default=[], metavar="TARGET", help="audit a policy: package.module:Class"
    )
    group.addoption(
        "--engram-audit-setting", action="append", default=[], metavar="SETTING=VALUE", help="env=…, py_agent.OPTION=…"
    )
    group.addoption("--engram-audit-quick", action="store_true", help="smaller sizes, in seconds")


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    for target in config.getoption("--engram-audit"):
        items.extend(AuditCheckItem.all_of(session, target))


class TargetAudit:
    """The audit of one target, which runs when the result of its first check is needed."""

    def __init__(self, target: str, config: pytest.Config) -> None:
        self.target, self.config = target, config
        self._report: AuditReport | None = None

    def result(self, check: str) -> "CheckResult":
        if self._report is None:
            from engram.api.audit import targets
            from engram.audit.context import QUICK
            from engram.audit.run import run_audit

            (found,) = targets(self.target, self.config.getoption("--engram-audit-setting"))
            sizes = QUICK if self.config.getoption("--engram-audit-quick") else found.sizes
            self._report = run_audit(
                found.make, found.spec, takes_options=found.takes_options, name=found.name, sizes=sizes
            )
        return next(result for result in self._report.results if result.name == check)


class AuditCheckItem(pytest.Item):
    """One check of one target."""

    audit: TargetAudit
    check: str

    @classmethod
    def all_of(cls, session: pytest.Session, target: str) -> Iterator["AuditCheckItem"]:
        from engram.audit.checks import CHECKS

        audit = TargetAudit(target, session.config)
        for check in CHECKS:
            item = cls.from_parent(session, name=f"engram_audit[{target}-{check}]")
            item.audit, item.check = audit, check
            yield item

    def runtest(self) -> None:
        result = self.audit.result(self.check)
        if result.status == "skip":
            pytest.skip(result.finding)
        if result.status == "fail":
            raise AuditCheckFailed(
                f"{result.question}\n  found   {result.finding}\n  effect  {result.effect}\n"
                f"  where   {result.where}\n  fix     {result.fix}"
            )

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any, **options: Any) -> Any:
        if isinstance(excinfo.value, AuditCheckFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, *args, **options)

    def reportinfo(self) -> tuple[str, None, str]:
        return self.audit.target, None, self.name


class AuditCheckFailed(Exception):  # noqa: N818
    """A check failed; the text explains it."""
