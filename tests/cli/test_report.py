"""`engram report` and `engram diagnose` on stored runs."""

import json
import sys
from pathlib import Path

import pytest
from support import running

import engram
from engram.cli.main import main
from engram.config.load import load
from engram.config.run_directory import prepare_directory


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Two seeds of one run that really trained, and one without metrics."""
    directory = tmp_path_factory.mktemp("runs")
    running.run(directory, name="recall_seed-1", epochs=4)
    running.run(directory, "seed=2", name="recall_seed-2", epochs=4)
    prepare_directory(load(["env=recall", "run=empty", f"runs_dir={directory}"]))
    return directory


def facts_in(page: Path) -> dict:
    content = page.read_text(encoding="utf-8").split('<script id="data" type="application/json">')[1]
    return json.loads(content.split("</script>")[0])


def test_runs_that_differ_by_their_seed_are_one_curve(runs, capsys):
    assert main(["report", "recall_seed-*", f"runs_dir={runs}"]) == 0
    page = runs / "recall_seed-1" / "report.html"
    assert str(page) in capsys.readouterr().out
    facts = facts_in(page)
    assert facts["groups"] == ["recall (2 seeds)"]
    assert facts["differing"] == {"seed": ["1", "2"]}
    assert all(len(chart["curves"]) == 1 for chart in facts["charts"])
    assert facts["ceiling"] == 0.25
    assert {"Learning", "Losses", "Gradient and memory", "Throughput"} <= {
        chart["section"] for chart in facts["charts"]
    }


def test_pages_memory_and_audit_of_a_run_are_shown(runs, tmp_path):
    directory = runs / "recall_seed-2"
    (directory / "replay.html").write_text("x")
    (directory / "memory.json").write_text('{"verdict": ["It remembers."]}')
    assert main(["audit", str(directory), "--only", "detachment,modes"]) == 0
    out = tmp_path / "new" / "page.html"
    assert main(["report", f"run={directory}", "--out", str(out)]) == 0
    (run,) = facts_in(out)["runs"]
    assert run["links"] == {"replay": (directory / "replay.html").resolve().as_uri()}
    assert run["memory"] == ["It remembers."]
    assert [(check["name"], check["status"]) for check in run["audit"]] == [("modes", "pass"), ("detachment", "pass")]


def test_charts_for_papers_are_written(runs, tmp_path):
    words = [
        "report",
        "recall_seed-1",
        f"runs_dir={runs}",
        "--out",
        str(tmp_path / "r.html"),
        "--png",
        str(tmp_path / "png"),
    ]
    assert main(words) == 0
    assert (tmp_path / "png" / "learning.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "png" / "gradient-and-memory.png").exists()


def test_python_writes_the_same_page(runs, tmp_path):
    first, second = (engram.open(runs / f"recall_seed-{seed}") for seed in (1, 2))
    assert first.report(tmp_path / "page.html", second) == tmp_path / "page.html"
    assert facts_in(tmp_path / "page.html")["groups"] == ["recall (2 seeds)"]
    assert first.diagnose().verdict == "early"


def test_mistakes_are_one_message(runs, capsys, monkeypatch):
    assert main(["report"]) == 2
    assert main(["report", "recal_seed-1", f"runs_dir={runs}"]) == 2
    assert main(["report", "empty", f"runs_dir={runs}"]) == 2
    assert main(["report", "episodes=3"]) == 2
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    assert main(["report", "recall_seed-1", f"runs_dir={runs}"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "report: name a run: engram report run=NAME (engram runs lists them)",
        f"run: no run 'recal_seed-1' in {runs}; did you mean recall_seed-1?",
        "report: empty: no metrics yet: try again after its first epoch",
        "report: episodes=3: no such option; write engram report RUN … [runs_dir=DIRECTORY]",
        "report: the charts need plotly, which is not installed: pip install 'engram-rl[report]'",
    ]


def test_a_strangers_code_is_not_imported(runs, tmp_path, capsys):
    """Neither report nor diagnosis needs trust, because neither builds anything."""
    directory = runs / "recall_seed-1"
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    (stranger / "metrics.jsonl").write_text((directory / "metrics.jsonl").read_text())
    (stranger / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    settings = (directory / "settings.yaml").read_text().replace("name: fast", f"name: {stranger}/evil.py:Policy")
    assert "evil.py" in settings
    (stranger / "settings.yaml").write_text(settings)
    assert main(["report", str(stranger)]) == 0
    assert main(["diagnose", str(stranger)]) == 0
    assert "Too early to tell" in capsys.readouterr().out
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("seconds", ["NaN", "Infinity", "1" + "0" * 400])
def test_a_record_with_an_impossible_time_does_not_stop_a_report(runs, tmp_path, seconds):
    path = runs / "empty" / "metrics.jsonl"
    path.write_text(f'{{"epoch": 1, "steps": 96, "return": 0.5, "time/seconds": {seconds}}}\n')
    assert main(["report", "empty", f"runs_dir={runs}", "--out", str(tmp_path / "page.html")]) == 0
    path.unlink()
    assert facts_in(tmp_path / "page.html")["runs"][0]["seconds"] is None
