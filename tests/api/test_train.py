"""Training from Python."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Lock

import pytest
from api.echo import Echo
from api.tiny import SMALL, Small

import engram
from engram.env import user_code


def records(run):
    """Metrics without those that differ between equal runs."""
    return [{k: v for k, v in r.items() if not k.startswith(("time/", "process/"))} for r in run.records]


def test_a_class_and_a_policy_class_train(run):
    assert run.steps == 128
    assert run.settings.env.title == "Echo"
    assert run.settings.policy.name.endswith(":Small")
    assert [record["memory/replay_error"] < 1e-5 for record in run.records] == [True, True]


def test_nested_dotted_and_named_settings_are_the_same(tmp_path):
    one = engram.train("recall", total_timesteps=64, run="a", runs_dir=tmp_path, seed=3, **SMALL)
    two = engram.train(
        **{"env": "recall", "trainer.total_timesteps": 64, "run": "b", "runs_dir": str(tmp_path), "seed": 3},
        **{f"trainer.{name}": value for name, value in SMALL["trainer"].items()},
        progress=False,
    )
    assert one.settings.model_copy(update={"run": "b"}) == two.settings
    assert records(one) == records(two)


def test_the_same_call_with_more_steps_resumes_exactly(run, tmp_path):
    whole = engram.train(Echo, Small, total_timesteps=192, run="whole", runs_dir=tmp_path, seed=1, **CONSTANT)
    engram.train(Echo, Small, total_timesteps=64, run="parts", runs_dir=tmp_path, seed=1, **CONSTANT)
    parts = engram.train(run="parts", runs_dir=tmp_path, total_timesteps=192, progress=False)
    assert records(parts) == records(whole)


def test_workers_get_classes_of_this_program(run, tmp_path):
    trainer = {**SMALL["trainer"], "num_workers": 2}
    spread = engram.train(
        Echo, Small, total_timesteps=128, run="spread", runs_dir=tmp_path, trainer=trainer, progress=False
    )
    assert records(spread) == records(run)


def test_a_factory_trains_with_workers(tmp_path):
    delay = 2
    trainer = {**SMALL["trainer"], "num_workers": 2}
    run = engram.train(
        lambda: Echo(delay), total_timesteps=64, run="made", runs_dir=tmp_path, trainer=trainer, progress=False
    )
    assert run.records[-1]["episode/length"] == 3


def test_a_factory_that_cannot_be_pickled_says_so(tmp_path):
    lock = Lock()
    with pytest.raises(engram.UserError, match=r"cannot be sent to worker processes .*num_workers=0"):
        engram.train(
            lambda: (lock, Echo())[1],
            total_timesteps=64,
            runs_dir=tmp_path,
            trainer={**SMALL["trainer"], "num_workers": 1},
            progress=False,
        )


def test_a_factory_must_make_a_new_environment_each_time(tmp_path):
    env = Echo()
    with pytest.raises(engram.UserError, match="returned the same environment twice"):
        engram.train(lambda: env, total_timesteps=64, runs_dir=tmp_path, **SMALL)


def test_a_run_whose_class_is_missing_says_what_to_give(run, monkeypatch):
    name = run.settings.env.name
    monkeypatch.delitem(user_code._objects, name)
    monkeypatch.setattr(sys.modules[Echo.__module__], "Echo", None)
    with pytest.raises(engram.UserError, match=r"env: .* has no Echo"):
        engram.load(run)
    assert engram.load(run, env=Echo).act({"bit": 1, "clock": [0.0]}) in (0, 1)


SCRIPT = """
import gymnasium, engram
from gymnasium import spaces

class Mine(gymnasium.Env):
    observation_space, action_space = spaces.Box(0, 1, (2,)), spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.random(2, "float32"), {}
    def step(self, action):
        return self.np_random.random(2, "float32"), 1.0, True, False, {}

sizes = dict(num_envs=2, bptt_horizon=4, batch_size=8, num_workers=1, update_epochs=1)
print(engram.train(Mine, total_timesteps=16, run="mine", trainer=sizes, progress=False).steps)
"""


@pytest.mark.parametrize("how", ["script", "stdin"])
def test_a_program_without_a_main_guard_trains_with_workers(how, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    words = {"script": ["script.py"], "stdin": ["-"]}[how]
    done = subprocess.run(
        [sys.executable, *words],
        input=SCRIPT if how == "stdin" else None,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(engram.__file__).parent.parent)},
    )
    assert done.stdout == "16\n", done.stderr
    name = engram.open(tmp_path / "runs" / "mine").settings.env.name
    with pytest.raises(engram.UserError, match=r"env: Mine was defined in a script or notebook .*: define it"):
        user_code.find(name, "env")


def test_an_interrupt_ends_training_after_the_epoch_with_a_checkpoint(tmp_path):
    before = signal.getsignal(signal.SIGINT)

    def interrupt(run, record):
        if record["epoch"] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    run = engram.train("recall", total_timesteps=10_000, runs_dir=tmp_path, on_epoch=interrupt, **SMALL)
    assert run.records[-1]["epoch"] <= 3
    assert run.checkpoints[-1].name == f"epoch_{run.records[-1]['epoch']:06d}"
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_interrupt_returns_the_run_at_once(tmp_path):
    def interrupt(run, record):
        raise KeyboardInterrupt

    run = engram.train("recall", total_timesteps=10_000, runs_dir=tmp_path, on_epoch=interrupt, **SMALL)
    assert run.steps == 64


CONSTANT = {
    **SMALL,
    "trainer": {
        **SMALL["trainer"],
        "ppo": {"ent_coef": 0.01},
        "schedule": {"optimizer.learning_rate": {"kind": "constant"}, "ppo.ent_coef": {"kind": "constant"}},
    },
}


def test_a_run_resumes_with_what_its_hook_had_changed(tmp_path):
    def change(run, record):  # in the first epoch only
        if record["epoch"] == 1:
            run.set("ppo.ent_coef", 0.5)
            run.set("optimizer.learning_rate", 0.003)
            return {"delay": 6}

    def change_and_stop(run, record):
        if record["epoch"] == 2:
            run.stop()
        return change(run, record)

    options = {"total_timesteps": 256, "runs_dir": tmp_path, "env.delay": 3, **SMALL}
    whole = engram.train("recall", run="whole", on_epoch=change, **options)
    stopped = engram.train("recall", run="parts", on_epoch=change_and_stop, **options)
    assert stopped.steps == 128
    resumed = engram.train(run="parts", runs_dir=tmp_path, on_epoch=change, progress=False)
    assert records(resumed) == records(whole)
    assert whole.records[-1]["schedule/optimizer.learning_rate"] == 0.003


def test_a_run_with_parts_is_evaluated_and_teaches_another(run, tmp_path):
    assert run.evaluate(episodes=6, greedy=True).episodes == 6
    teacher = {"teacher": str(run.directory), "anneal_steps": 1000}
    trainer = {**SMALL["trainer"], "kickstart": teacher}
    student = engram.train(
        Echo, "fast", total_timesteps=128, runs_dir=tmp_path, run="student", trainer=trainer, progress=False
    )
    assert all(record["loss/teacher_action"] > 0 for record in student.records)


def test_a_run_with_parts_passes_the_audit(run):
    report = engram.audit(run, only=["replay", "boundary_learning", "row_isolation", "detachment"])
    assert report.passed, report
