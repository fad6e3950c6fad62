"""`engram bench learn`: plans runs, keeps finished ones, and reports what they reached."""

import io
import json
import re
from contextlib import redirect_stdout

import pytest

from engram.bench.learning import suite as jobs_module
from engram.bench.learning.parity import permutation_test
from engram.bench.learning.result import collect
from engram.bench.learning.suite import LearnOptions, Processes, is_finished, plan, run_jobs, tasks_of, variants_of
from engram.bench.process import ProgramError
from engram.cli.main import main
from engram.config.load import SETTINGS_FILE, dump, load
from engram.settings import UserError

RETURNS = [(0.2, 0.1), (0.96, 0.5), (0.9, 0.97)]  # greedy and sampled, at three evaluations


@pytest.fixture
def options(tmp_path):
    return LearnOptions(tasks=["recall/delay10", "control/CartPole"], seeds=2, out=tmp_path, episodes=4)


@pytest.fixture
def commands(monkeypatch):
    """Fakes `engram train` and `engram eval`; returns the commands that were run."""
    ran: list[list[str]] = []

    def run(self, words, log, capture=False):
        ran.append(words)
        settings = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        if "boom" in settings["run"]:
            raise ProgramError("it went wrong")
        if words[0] == "eval":
            return json.dumps({"return": {"mean": 0.99 if settings["greedy"] == "true" else 0.9}})
        folder = load([word for word in words[1:] if not word.startswith("run")]).model_copy(
            update={"run": settings["run"], "runs_dir": settings["runs_dir"]}
        )
        folder.directory.mkdir(parents=True, exist_ok=True)
        (folder.directory / SETTINGS_FILE).write_text(dump(folder))
        records = [
            {"steps": 1000 * number, "time/seconds": 3.0 * number, "time/evaluation_seconds": 1.0}
            | {"evaluate/greedy_return": greedy, "evaluate/return": sampled, "memory/replay_error": 0.0}
            for number, (greedy, sampled) in enumerate(RETURNS, 1)
        ]
        (folder.directory / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)))
        return ""

    monkeypatch.setattr(Processes, "run", run)
    return ran


def test_a_plan_has_every_task_variant_and_seed_and_begins_with_first_seeds(options):
    planned = plan(LearnOptions(**{**vars(options), "vary": ["py_agent.core=lstm,gru"]}))
    assert len({job.name for job in planned}) == len(planned) == 8
    assert [job.seed for job in planned] == [1] * 4 + [2] * 4
    assert {job.variant for job in planned} == {"py_agent.core=lstm", "py_agent.core=gru"}


def test_seeds_that_nothing_was_tuned_on_can_be_asked_for_and_are_part_of_the_command(options, commands):
    planned = plan(LearnOptions(**{**vars(options), "first_seed": 11}))
    assert [job.seed for job in planned] == [11, 11, 12, 12]
    run_jobs(planned, 1, lambda line: None)
    assert "--seeds 2 --first-seed 11" in collect(planned)[0].command


def test_several_varied_settings_give_every_combination():
    found = variants_of(LearnOptions(overrides=["a=0"], vary=["b=1,2", "c=3,4"]))
    assert found == [("a=0", "b=1", "c=3"), ("a=0", "b=1", "c=4"), ("a=0", "b=2", "c=3"), ("a=0", "b=2", "c=4")]


def test_suites_grow_by_budget_and_long_runs_have_three_seeds(tmp_path):
    quick, standard, full = (tasks_of(suite) for suite in ("quick", "standard", "full"))
    assert set(quick) < set(standard) < set(full)
    assert "control/CartPole" in quick
    seeds = {
        job.task: job.seed for job in plan(LearnOptions(tasks=["control/CartPole", "tmaze/corridor50"], out=tmp_path))
    }
    assert seeds == {"control/CartPole": 5, "tmaze/corridor50": 3}


def test_a_run_is_evaluated_about_as_often_as_asked(options):
    job = next(job for job in plan(options) if job.task == "control/CartPole")
    assert job.evaluate_interval == 2  # of 49 epochs


def test_finished_runs_are_kept_and_only_the_others_run(options, commands):
    planned = plan(options)
    assert run_jobs(planned[:1], 1, lambda line: None) == {}
    assert [words[0] for words in commands] == ["train", "eval", "eval"]
    assert is_finished(planned[0])
    run_jobs(planned, 2, lambda line: None)
    assert len(commands) == 3 * len(planned)


def test_the_commands_of_a_run_are_those_that_ran(options, commands):
    (job,) = plan(LearnOptions(**{**vars(options), "tasks": ["recall/delay10"], "seeds": 1}))
    run_jobs([job], 1, lambda line: None)
    assert [" ".join(words).replace(" --json", "") for words in commands] == [
        command.partition("engram ")[2] for command in job.commands
    ]


def test_a_row_tells_score_steps_and_seconds_to_the_goal_without_evaluations(options, commands):
    planned = plan(options)
    run_jobs(planned, 1, lambda line: None)
    cartpole, recall = sorted(collect(planned), key=lambda row: row.task)
    assert recall.over_seeds("greedy").mean == pytest.approx(0.99)
    assert (recall.to_goal("steps"), recall.to_goal("seconds")) == (2000, 4.0)
    assert cartpole.to_goal("steps") is None
    assert cartpole.published["score"] == 500


def test_a_failed_run_is_reported_and_the_others_go_on(options, commands, tmp_path):
    boom = tmp_path / "boom.yaml"
    boom.write_text("env: {kind: recall}\ntrainer: {total_timesteps: 5000}\n")
    planned = plan(LearnOptions(**{**vars(options), "tasks": [str(boom), "recall/delay10"], "seeds": 1}))
    failures = run_jobs(planned, 1, lambda line: None)
    assert list(failures.values()) == ["it went wrong"]
    assert [row.task for row in collect(planned)] == ["recall/delay10"]


def test_a_stored_run_with_other_settings_is_refused(options, commands, monkeypatch):
    planned = plan(options)
    run_jobs(planned, 1, lambda line: None)
    assert plan(options) == planned
    path = planned[0].directory / SETTINGS_FILE
    path.write_text(path.read_text().replace("gamma: 0.99", "gamma: 0.5"))
    with pytest.raises(UserError, match=r"trainer.ppo.gamma: 0.99, but 0.5 .*(.|\n)*give a different --out"):
        plan(options)


def test_the_command_prints_a_table_and_writes_a_page(commands, tmp_path, capsys):
    words = ["--tasks", "recall/delay10", "--seeds", "2", "--out", str(tmp_path), "--vary", "py_agent.core=lstm,gru"]
    assert main(["bench", "learn", *words]) == 0
    out = capsys.readouterr().out
    assert "recall/delay10" in out
    assert "2 of 2" in out
    page = (tmp_path / "page.html").read_text()
    assert page.count("<polyline") == 4  # greedy and sampled, of two variants
    assert re.search(r">[\d,]+ steps<", page)  # a whole number
    assert "engram bench learn --tasks recall/delay10" in page
    result = json.loads((tmp_path / "results.json").read_text())
    assert [row["variant"] for row in result["rows"]] == ["py_agent.core=lstm", "py_agent.core=gru"]
    count = len(commands)
    assert main(["bench", "learn", *words, "--report"]) == 0
    assert len(commands) == count


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tasks", "recall/delay11"], "did you mean recall/delay10?"),
        (["--suite", "quik"], "invalid choice: 'quik'"),
        (["--tasks", "recall/delay10", "trainer.gama=1"], "did you mean trainer.ppo.gamma?"),
        (["--tasks", "recall/delay10", "--vary", "py_agent.core"], "write NAME=A,B"),
        (["--tasks", "recall/delay10", "--vary", "py_agent.core=lstm,gur"], "'gur' is not one of"),
    ],
)
def test_a_mistake_fails_at_once(words, message, capsys, tmp_path):
    assert main(["bench", "learn", "--out", str(tmp_path), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_program_is_run_in_its_own_process_and_its_last_line_is_the_reason_of_a_failure(tmp_path):
    assert Processes().run(["--version"], tmp_path / "log.txt", capture=True).startswith("engram ")
    with pytest.raises(ProgramError, match="sed: no such option; did you mean seed"):
        Processes().run(["train", "sed=1"], tmp_path / "log.txt")


@pytest.mark.slow
def test_a_real_run_is_trained_evaluated_and_kept(tmp_path, capsys, monkeypatch):
    def run(self, words, log, capture=False):
        with redirect_stdout(io.StringIO()) as output:
            assert main(words) == 0
        return output.getvalue()

    monkeypatch.setattr(Processes, "run", run)  # in this process, which has loaded torch already
    words = ["--tasks", "recall/delay10", "--seeds", "1", "--out", str(tmp_path), "--episodes", "4", "--points", "2"]
    words += ["trainer.total_timesteps=1000", "py_agent.hidden_size=8"]
    assert main(["bench", "learn", *words]) == 0
    (row,) = json.loads((tmp_path / "results.json").read_text())["rows"]
    (run,) = row["runs"]
    assert run["steps"] >= 1000
    assert len(run["curve"]) >= 2
    assert run["replay_error"] < 1e-5
    assert jobs_module.commit() == run["commit"]
    assert main(["bench", "learn", *words]) == 0
    assert "1 of 1 runs are finished already" in capsys.readouterr().err


def test_parity_compares_the_two_forms_of_a_policy(commands, tmp_path, capsys):
    words = ["--tasks", "recall/delay10", "--seeds", "3", "--out", str(tmp_path), "--policies", "fast"]
    assert main(["bench", "parity", *words, "trainer.total_timesteps=2000"]) == 0
    out = capsys.readouterr().out
    assert "no difference found" in out
    assert {word for words in commands for word in words if "agent=" in word} == {"agent=fast", "py_agent=fast"}


def test_parity_tells_when_returns_differ(commands, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("engram.bench.learning.parity.permutation_test", lambda one, other: 0.01)
    words = ["--tasks", "recall/delay10", "--seeds", "2", "--out", str(tmp_path)]
    assert main(["bench", "parity", *words]) == 1
    assert "differ" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("one", "other", "p"),
    [([1, 2], [1, 2], 1.0), ([0, 0], [5, 5], 2 / 6), ([0] * 4, [1] * 4, 2 / 70), ([1, 2, 6], [3, 4, 5], 0.7)],
)
def test_the_permutation_test_counts_splits(one, other, p):
    assert permutation_test(one, other) == pytest.approx(p)
