"""When the watchdog stops a run, and with which message."""

import math

import pytest
import torch
from support.running import metrics, run
from torch import nn

from engram.settings import UserError
from engram.training.optimizer import OptimizerStep
from engram.training.settings import Trainer
from engram.training.watchdog import MIN_HISTORY, PATIENCE, ExplosionGuard, TrainingStoppedError, check_health


def network() -> nn.Module:
    network = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    return network


def feed(guard: ExplosionGuard, norms: list[float], agent: nn.Module, **settings) -> None:
    for epoch, norm in enumerate(norms, 1):
        guard.check({"epoch": epoch, "gradient/norm": norm}, agent, Trainer(**settings))


def test_exploding_gradients_stop_the_run_and_the_module_is_named() -> None:
    agent = network()
    agent[0].weight.grad *= 30
    message = rf"epoch {MIN_HISTORY + PATIENCE}: the gradient norm is 2e\+03; .* median of 1\. The largest .* is in 0"
    with pytest.raises(TrainingStoppedError, match=message):
        feed(ExplosionGuard(), [1.0] * MIN_HISTORY + [2000.0] * PATIENCE, agent)


@pytest.mark.parametrize(
    "norms",
    [
        [1.0] * MIN_HISTORY + [999.0] * 20,  # high, but not above the bound
        [1.0] * MIN_HISTORY + [2000.0] * (PATIENCE - 1) + [1.0] + [2000.0] * (PATIENCE - 1),  # not in a row
        [1.0] * (MIN_HISTORY - 1) + [2000.0],  # too few epochs for a median
        [10.0**power for power in range(-8, 9)],  # again too few
    ],
)
def test_varying_norms_do_not_stop_the_run(norms: list[float]) -> None:
    feed(ExplosionGuard(), norms, network())


def test_the_bound_can_be_lowered_and_disabled() -> None:
    norms = [1.0] * MIN_HISTORY + [20.0] * PATIENCE
    feed(ExplosionGuard(), norms, network())
    with pytest.raises(TrainingStoppedError, match=r"trainer\.gradient_bound \(10\)"):
        feed(ExplosionGuard(), norms, network(), gradient_bound=10)
    feed(ExplosionGuard(), [1.0] * MIN_HISTORY + [1e9] * 20, network(), gradient_bound=None)


def test_a_resumed_guard_continues_to_count() -> None:
    guard, other = ExplosionGuard(), ExplosionGuard()
    feed(guard, [1.0] * MIN_HISTORY + [2000.0] * (PATIENCE - 1), network())
    other.load_state(guard.state())
    with pytest.raises(TrainingStoppedError):
        feed(other, [2000.0], network())


def test_a_norm_that_is_not_finite_names_the_first_bad_tensor() -> None:
    agent = network()
    agent[1].bias.grad[0] = math.nan
    with pytest.raises(
        TrainingStoppedError, match=r"epoch 3: gradient/norm is nan.*gradient.* not finite: that of 1\.bias"
    ):
        check_health({"epoch": 3, "gradient/norm": math.nan}, agent, Trainer())


@pytest.mark.parametrize(("precision", "bound"), [("float32", 0.001), ("bfloat16", 0.1)])
def test_a_replay_may_differ_by_rounding(precision: str, bound: float) -> None:
    record = {"epoch": 1, "memory/replay_error": 0.9 * bound}
    check_health(record, network(), Trainer(precision=precision))
    with pytest.raises(TrainingStoppedError, match=rf"replay_error_bound={bound:g}"):
        check_health(record | {"memory/replay_error": 1.1 * bound}, network(), Trainer(precision=precision))
    check_health(record | {"memory/replay_error": 0.5}, network(), Trainer(precision=precision, replay_error_bound=0.6))


def test_a_run_stopped_by_the_guard_resumes_with_a_different_bound(tmp_path, monkeypatch) -> None:
    original = OptimizerStep.__call__

    def explodes(self, settings, norms=None):
        norms = original(self, settings)
        epochs = len(metrics(tmp_path))
        return norms._replace(norm=norms.norm * 1e6) if epochs >= MIN_HISTORY else norms

    monkeypatch.setattr(OptimizerStep, "__call__", explodes)
    words = ("trainer.update_epochs=1", "trainer.checkpoint.interval=5")
    with pytest.raises(UserError, match=r"The largest gradient is in policy\."):
        run(tmp_path, *words, epochs=30)
    result = run(tmp_path, *words, "trainer.gradient_bound=null", epochs=30)
    assert result.steps == 30 * 96


def test_weights_are_measured_every_analyze_weights_interval_epochs(tmp_path) -> None:
    run(tmp_path, "py_agent.analyze_weights_interval=2", epochs=4)
    measured = [record.get("weights/core.weight_hh_l0/effective_rank") for record in metrics(tmp_path)]
    assert [value is not None for value in measured] == [False, True, False, True]
