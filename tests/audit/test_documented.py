"""What is written about the audit and about policies: every check is explained, and every example holds."""

import re
import runpy
from pathlib import Path

import pytest

from engram.audit.adapters.registry import ADAPTERS
from engram.audit.checks import CHEAP, CHECKS
from engram.audit.context import QUICK
from engram.cli.main import main

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
POLICIES = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")


def test_every_check_is_explained() -> None:
    assert set(re.findall(r"^\*\*(\w+)\*\*", PAGE, re.MULTILINE)) == set(CHECKS)
    assert "detachment, row isolation, both boundaries, replay and" in PAGE
    assert len(CHEAP) == 6


def test_every_adapter_has_an_example_that_is_there() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\]\(\.\./(examples/audit/\w+\.py)\) \|$", PAGE, re.MULTILINE))
    assert rows.keys() == ADAPTERS.keys()
    assert all((ROOT / path).is_file() for path in rows.values())


@pytest.fixture
def small_sizes(monkeypatch) -> None:
    """The examples rehearse at full size, which proves no more about the example."""
    monkeypatch.setattr("engram.audit.context.DEFAULT_SIZES", QUICK)


@pytest.mark.usefixtures("small_sizes")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("plain_module", "checks hold"),
        ("cleanrl_agent", "checks hold"),
        ("pufferlib_policy", "FAIL  boundary_acting"),
        ("sb3_policy", "FAIL  nan_at_start"),
    ],
)
def test_examples_run(name: str, said: str, capsys) -> None:
    runpy.run_path(str(ROOT / "examples" / "audit" / f"{name}.py"), run_name="__main__")
    assert said in capsys.readouterr().out


@pytest.mark.usefixtures("small_sizes")
def test_the_example_of_a_test_holds() -> None:
    runpy.run_path(str(ROOT / "examples" / "audit" / "in_your_tests.py"))["test_the_memory_of_my_policy_is_right"]()


@pytest.mark.parametrize("policy", ["Mine", "Own"])
def test_the_policies_of_the_page_on_policies_hold(policy: str, tmp_path: Path, capsys) -> None:
    file = tmp_path / "policies.py"
    examples = re.findall(r"^```python\n(.*?)^```", POLICIES, re.MULTILINE | re.DOTALL)
    file.write_text("\n\n".join(examples), encoding="utf-8")
    options = ["env=gym", "env.id=CartPole-v1", "py_agent.hidden_size=64", "--quick"]
    exit_code = main(["audit", f"{file}:{policy}", *options])
    assert exit_code == 0, capsys.readouterr().out
