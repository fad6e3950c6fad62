"""Reports for continuous integration: SARIF for code scanning, and JUnit XML."""

import re
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from engram import __version__
from engram.audit.result import AuditReport, CheckResult

LOCATION = re.compile(r"\(([^()]+\.py):(\d+)\)")


def sarif(reports: Sequence[AuditReport]) -> dict[str, Any]:
    """SARIF 2.1.0: each failed check is a result at the line to look at."""
    rules = {result.name: result for report in reports for result in report.results}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "engram audit",
                        "version": __version__,
                        "rules": [
                            {"id": rule.name, "shortDescription": {"text": rule.question}} for rule in rules.values()
                        ],
                    }
                },
                "results": [_sarif_result(report, result) for report in reports for result in report.failures],
            }
        ],
    }


def _sarif_result(report: AuditReport, result: CheckResult) -> dict[str, Any]:
    roots = {cause.root.name: f"{cause.sentence}. " if cause.sentence else "" for cause in report.causes}
    found: dict[str, Any] = {
        "ruleId": result.name,
        "level": "error" if result.name in roots else "warning",  # a consequence of another fault
        "message": {
            "text": f"{report.target}: {roots.get(result.name, '')}{result.finding}. {result.effect} Fix: {result.fix}"
        },
    }
    if match := LOCATION.search(result.where):
        location = {"artifactLocation": {"uri": match[1]}, "region": {"startLine": int(match[2])}}
        found["locations"] = [{"physicalLocation": location}]
    return found


def junit(reports: Sequence[AuditReport]) -> str:
    """JUnit XML: a suite for each target, a case for each check."""
    suites = ElementTree.Element("testsuites")
    for report in reports:
        counts = {
            "tests": str(len(report.results)),
            "failures": str(len(report.failures)),
            "skipped": str(sum(result.status == "skip" for result in report.results)),
        }
        suite = ElementTree.SubElement(suites, "testsuite", {"name": f"engram audit {report.target}", **counts})
        for result in report.results:
            case = ElementTree.SubElement(
                suite, "testcase", classname=report.target, name=result.name, time=f"{result.seconds:.3f}"
            )
            if result.status == "fail":
                failure = ElementTree.SubElement(case, "failure", message=result.finding)
                failure.text = f"{result.effect}\nwhere: {result.where}\nfix: {result.fix}"
            elif result.status == "skip":
                ElementTree.SubElement(case, "skipped", message=result.finding)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True)
