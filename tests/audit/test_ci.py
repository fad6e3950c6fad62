"""Reports for CI: SARIF, JUnit XML, and the pytest plugin."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

from audit.broken.memory import TruncationIgnored
from support.playing import vector_env

from engram.audit import run_audit
from engram.audit.context import QUICK
from engram.audit.text_report import junit, sarif

ROOT = Path(__file__).resolve().parent.parent.parent
ONLY = ["boundary_acting", "boundary_learning", "observation_tokens"]


def report():
    return run_audit(partial(TruncationIgnored, vector_env()), vector_env(), only=ONLY, sizes=QUICK)


def test_sarif_points_at_the_line_and_calls_only_the_root_an_error() -> None:
    (run,) = json.loads(json.dumps(sarif([report()])))["runs"]
    levels = {result["ruleId"]: result["level"] for result in run["results"]}
    assert levels == {"boundary_acting": "error", "boundary_learning": "warning"}
    (location,) = run["results"][0]["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"].endswith("memory.py")
    assert location["physicalLocation"]["region"]["startLine"] > 1


def test_junit_has_a_case_for_each_check() -> None:
    suite = ElementTree.fromstring(junit([report()]))[0]
    assert suite.attrib["tests"] == "3"
    assert suite.attrib["failures"] == "2"
    assert suite.attrib["skipped"] == "1"
    assert "truncateds" in suite.find("testcase/failure").attrib["message"]  # type: ignore[union-attr]


def test_the_pytest_plugin_makes_each_check_a_test(tmp_path: Path) -> None:
    options = ["--engram-audit", "audit.broken.memory:TruncationIgnored", "--engram-audit-quick"]
    settings = ["--engram-audit-setting", "env=recall"]
    command = [sys.executable, "-m", "pytest", "-p", "engram.cli.pytest_plugin", "-q", *options, *settings]
    keep = ["-k", "boundary_acting or observation_tokens or determinism", "--rootdir", str(tmp_path), str(tmp_path)]
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": "/usr/bin"}
    done = subprocess.run([*command, *keep], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=600)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed, 1 skipped" in done.stdout
    assert "truncateds: memory is not cleared at all" in done.stdout
