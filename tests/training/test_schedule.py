"""Schedules of hyper-parameters."""

import pytest
from support.running import InterruptAfter, metrics, run

from engram.settings import UserError
from engram.training.schedule import (
    ByMetric,
    Constant,
    MetricState,
    Ramp,
    Schedules,
    by_dotted_name,
    next_state,
    value_at,
)
from engram.training.settings import Trainer

RATE = "optimizer.learning_rate"


@pytest.mark.parametrize(
    ("schedule", "fraction", "expected"),
    [
        (Ramp(kind="linear", to=0), 0.0, 8.0),
        (Ramp(kind="linear", to=0), 0.25, 6.0),
        (Ramp(kind="linear", to=0, until=0.5), 0.25, 4.0),
        (Ramp(kind="linear", to=2, until=0.5), 0.9, 2.0),
        (Ramp(kind="linear", to=0, warmup=0.5), 0.25, 4.0),
        (Ramp(kind="linear", to=0, warmup=0.5), 0.75, 4.0),
        (Ramp(kind="cosine", to=0), 0.0, 8.0),
        (Ramp(kind="cosine", to=0), 0.25, 4 + 4 / 2**0.5),
        (Ramp(kind="cosine", to=0), 0.5, 4.0),
        (Ramp(kind="cosine", to=4), 1.0, 4.0),
        (Constant(kind="constant"), 0.7, 8.0),
        (Constant(kind="constant", warmup=0.1), 0.05, 4.0),
        (Constant(kind="constant", warmup=0.1), 0.2, 8.0),
    ],
)
def test_the_value_after_a_fraction_of_the_run(schedule, fraction: float, expected: float) -> None:
    assert value_at(schedule, 8.0, fraction) == pytest.approx(expected)


def test_a_metric_that_stalls_multiplies_the_value_each_time_patience_ends() -> None:
    schedule = ByMetric(kind="metric", metric="return", factor=0.5, patience=2, least=1.5)
    state, scales = MetricState(), []
    for measured in (1, 2, 2, 1, 3, 2, 2, 2, 2, 2, 2):
        state = next_state(schedule, state, measured, value=8.0)
        scales.append(8 * state.scale)
    assert scales == [8, 8, 8, 4, 4, 4, 2, 2, 1.5, 1.5, 1.5]


def test_a_metric_can_improve_downwards() -> None:
    schedule = ByMetric(kind="metric", metric="loss", factor=0.5, patience=1, better="lower", least=0)
    state = MetricState()
    for measured in (3, 2, 1):
        state = next_state(schedule, state, measured, value=1.0)
    assert state == MetricState(1.0, best=1, waited=0)


def test_a_metric_is_kept_near_its_target_within_bounds() -> None:
    schedule = ByMetric(kind="metric", metric="loss/kl", factor=0.5, target=0.01, least=1, most=16)
    state, values = MetricState(), []
    for measured in (0.01, 0.021, 0.03, 0.5, 0.1, 0.01, 0.004, 0.004, 0, 0, 0, 0):
        state = next_state(schedule, state, measured, value=8.0)
        values.append(8 * state.scale)
    assert values == [8, 4, 2, 1, 1, 1, 2, 4, 8, 16, 16, 16]


def test_only_scheduled_settings_change_and_only_in_the_copy() -> None:
    entropy = {"ent_coef": 0.0021}
    settings = Trainer(ppo=entropy, schedule={RATE: {"kind": "linear", "to": 0}, "ppo.ent_coef": {"kind": "constant"}})
    schedules = Schedules(settings.schedule)
    scheduled = schedules.apply(settings, 0.5)
    assert scheduled.optimizer.learning_rate == pytest.approx(0.0005)
    assert settings.optimizer.learning_rate == 0.001
    assert scheduled.ppo == settings.ppo
    assert schedules.record(scheduled) == {f"schedule/{RATE}": pytest.approx(0.0005), "schedule/ppo.ent_coef": 0.0021}


def test_the_learning_rate_decays_to_0_by_default() -> None:
    default, other = Trainer(), Trainer(ppo={"ent_coef": 0.1}, schedule={"ppo.ent_coef": {"kind": "constant"}})
    constant = Trainer(schedule={RATE: {"kind": "constant"}})
    for settings, rate in ((default, 0.0005), (other, 0.0005), (constant, 0.001)):
        assert Schedules(settings.schedule).apply(settings, 0.5).optimizer.learning_rate == pytest.approx(rate)


def test_without_schedules_settings_stay_unchanged() -> None:
    assert Schedules({}).apply(Trainer(), 0.5) == Trainer()


def test_an_epoch_without_the_metric_changes_nothing() -> None:
    settings = Trainer(
        schedule={RATE: {"kind": "metric", "metric": "return", "factor": 0.5, "patience": 1, "least": 0.0001}}
    )
    schedules = Schedules(settings.schedule)
    for record in ({"return": 1.0}, {"return": None}, {}):
        schedules.observe(record, settings)
    assert schedules.apply(settings, 0.5) == settings
    schedules.observe({"return": 1.0}, settings)
    assert schedules.apply(settings, 0.5).optimizer.learning_rate == 0.0005


def by_metric(metric: str) -> str:
    return f"trainer.schedule.{RATE}={{kind:metric,metric:{metric},factor:0.5,patience:1,least:0.00001}}"


@pytest.mark.parametrize(
    ("metric", "hint"),
    [
        ("retrn", "; did you mean return?"),
        ("kl", "; did you mean loss/kl?"),
        ("loss/entrpy", "; did you mean loss/entropy?"),
        ("xyzzy", ": choose from epoch, steps, return, "),
    ],
)
def test_an_unknown_metric_stops_the_run_after_its_first_epoch(tmp_path, metric: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        run(tmp_path, by_metric(metric))
    assert str(caught.value).startswith(f"trainer.schedule.{RATE}.metric: no metric is named {metric}{hint}")
    run(tmp_path, by_metric("return"))
    assert [record["epoch"] for record in metrics(tmp_path)] == [1, 2, 3]


@pytest.mark.parametrize("metric", ["episode/correct", "evaluate/return", "weights/norm", "time/audit_seconds"])
def test_an_optional_metric_may_appear_later(metric: str) -> None:
    settings = Trainer(schedule={RATE: {"kind": "metric", "metric": metric, "factor": 0.5, "target": 1, "least": 1e-5}})
    schedules = Schedules(settings.schedule)
    schedules.observe({"epoch": 1}, settings)
    schedules.observe({"epoch": 2, metric: 9.0}, settings)
    assert schedules.apply(settings, 0.5).optimizer.learning_rate == 0.0005


def test_a_metric_that_disappears_does_not_stop_the_run() -> None:
    settings = Trainer(schedule={RATE: {"kind": "metric", "metric": "a", "factor": 0.5, "target": 1, "least": 1e-5}})
    for record in ({"epoch": 1, "a": None}, {"epoch": 2}):
        Schedules(settings.schedule).observe(record, settings)


def test_names_may_be_nested_or_dotted() -> None:
    nested = {"optimizer": {"learning_rate": {"kind": "linear"}}, "ppo.ent_coef": {"kind": "constant"}}
    assert by_dotted_name(nested) == {RATE: {"kind": "linear"}, "ppo.ent_coef": {"kind": "constant"}}
    assert by_dotted_name({RATE: {"kind": "linear"}, "optimizer": {"learning_rate": {"to": 3}}}) == {
        RATE: {"kind": "linear", "to": 3}
    }


SCHEDULED = (
    f"trainer.schedule.{RATE}={{kind:metric,metric:loss/kl,factor:0.5,target:1e-9,least:0.00001}}",
    "trainer.schedule.ppo.ent_coef={kind:cosine,to:0}",
    "trainer.schedule.ppo.clip_coef={kind:metric,metric:loss/entropy,factor:0.5,patience:1,least:0.01}",
    "trainer.schedule.prioritized.prio_alpha={kind:linear,to:1}",
)


def test_an_interrupted_run_with_schedules_resumes_exactly(tmp_path) -> None:
    run(tmp_path, *SCHEDULED, name="whole", epochs=6)
    for epoch in (3, 5):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, *SCHEDULED, name="pieces", epochs=6, display=InterruptAfter(epoch))
    run(tmp_path, *SCHEDULED, name="pieces", epochs=6)
    assert metrics(tmp_path, "pieces") == metrics(tmp_path, "whole")
    rates = [record[f"schedule/{RATE}"] for record in metrics(tmp_path, "whole")]
    assert rates[:3] == [0.001, 0.0005, 0.00025]


def test_a_learning_rate_near_zero_barely_changes_the_policy(tmp_path) -> None:
    run(tmp_path, f"trainer.schedule.{RATE}={{kind:linear,to:0,until:0.01}}", epochs=3)
    assert all(record["loss/kl"] < 1e-6 for record in metrics(tmp_path))
