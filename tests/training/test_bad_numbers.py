"""Bad numbers are reported where they entered, their minibatch is saved, and a run stops or leaves them out."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.running import log, metrics, run

from engram.settings import UserError
from engram.training import loop
from engram.training.ppo import ppo_loss
from engram.training.settings import PPO
from engram.training.watchdog import MAX_SKIPPED_IN_A_ROW, TrainingStoppedError

ENV = """
import gymnasium
import numpy as np


class Numbers(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def __init__(self, what="", value=0.0, at=60):
        self.what, self.value, self.at = what, value, at

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        self.steps += 1
        given = {"reward": 1.0, "observation": 0.5, "info": 2.0}
        if self.steps == self.at:  # after the check before a run
            given[self.what] = float(self.value)
        observation = np.array([0.1, given["observation"]])
        return observation, given["reward"], self.t == 5, False, {"score": given["info"]}
"""


def words(tmp_path: Path, what: str, value: object) -> tuple[str, ...]:
    (tmp_path / "numbers.py").write_text(ENV)
    at = 62 if what == "observation" else 60  # an observation after a termination would not be shown
    kwargs = f"{{what: {what}, value: {value}, at: {at}}}"
    return ("env=python", f"env.name={tmp_path}/numbers.py:Numbers", f"env.kwargs={kwargs}")


@pytest.mark.parametrize(
    ("what", "value", "shown"),
    [
        ("reward", "nan", "the reward of environment 0 is NaN or infinite at step 5 .* (nan)"),
        ("reward", "1e300", "the reward of environment 0 is too large .* (1e+300, at most 1e+15)"),
        ("reward", "-1e30", "the reward of environment 0 is too large .* (-1e+30, at most 1e+15): scale rewards"),
        ("observation", "-inf", "the observation of environment 0 is NaN or infinite at step 2 .* (-inf)"),
        ("observation", "1e300", "observation of environment 0 .* (inf)"),
        ("info", "inf", "the info 'score' of environment 0 is NaN or infinite at step 5 .* (inf)"),
        ("info", "1e50", "the info 'score' of environment 0 is too large .* (1e+50, too large for float32)"),
    ],
)
def test_a_bad_number_of_an_environment_is_reported_with_row_step_seed_and_value(tmp_path, what, value, shown) -> None:
    pattern = shown.replace("(", r"\(").replace(")", r"\)").replace("+", r"\+")
    with pytest.raises(UserError, match=pattern):
        run(tmp_path, *words(tmp_path, what, value), epochs=5)


def test_a_statistic_that_is_nan_is_missing_from_that_episode_only(tmp_path) -> None:
    run(tmp_path, *words(tmp_path, "info", "nan"), epochs=5)
    assert all(record["episode/score"] == 2.0 for record in metrics(tmp_path) if "episode/score" in record)


def test_with_skip_an_environment_with_a_bad_number_is_restarted(tmp_path) -> None:
    run(tmp_path, *words(tmp_path, "reward", "nan"), "trainer.on_nan=skip", "trainer.worker_restarts=9", epochs=5)
    assert metrics(tmp_path)[-1]["env/worker_restarts"] >= 1
    assert "is NaN or infinite at step 5" in log(tmp_path)


def spoil(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Advantages of these many minibatches are NaN at one step."""
    real, left = loop.compute_gradient, [times]

    def compute(agent, minibatch, *arguments):
        if left[0]:
            left[0] -= 1
            minibatch.advantages[1, 3] = math.nan
        return real(agent, minibatch, *arguments)

    monkeypatch.setattr(loop, "compute_gradient", compute)


def test_a_bad_loss_names_where_it_entered_and_leaves_its_minibatch_behind(tmp_path, monkeypatch) -> None:
    spoil(monkeypatch, 1)
    with pytest.raises(
        TrainingStoppedError, match=r"epoch 1: advantages is nan: computed .* row \d+, step \d+"
    ) as caught:
        run(tmp_path)
    assert "learning rate" not in str(caught.value)
    saved = load_file(tmp_path / "x" / "bad_minibatch.safetensors")
    assert torch.isnan(saved["advantages"]).nonzero().tolist() == [[1, 3]]
    assert {"data.env_obs", "data.actions", "weights", "segments"} <= saved.keys()
    facts = json.loads((tmp_path / "x" / "bad_minibatch.json").read_text())
    segment = int(saved["segments"][1])
    assert f"row {segment % 6}, step {segment // 6 * 8 + 3} " in facts["where"]


def test_skipped_minibatches_are_counted_and_change_no_weight(tmp_path, monkeypatch) -> None:
    spoil(monkeypatch, 2)
    run(tmp_path, "trainer.on_nan=skip")
    assert [record["loss/skipped"] for record in metrics(tmp_path)] == [2, 2, 2]
    assert all(math.isfinite(record["loss/total"]) for record in metrics(tmp_path)[1:])


def test_too_many_skipped_minibatches_in_a_row_stop_a_run(tmp_path, monkeypatch) -> None:
    spoil(monkeypatch, 10**6)
    with pytest.raises(TrainingStoppedError, match=f"after {MAX_SKIPPED_IN_A_ROW} skipped minibatches in a row"):
        run(tmp_path, "trainer.on_nan=skip", epochs=9)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("argument", range(7))
@pytest.mark.parametrize("vf_clip_coef", [None, 0.3])
def test_the_loss_kernel_and_its_definition_agree_on_bad_numbers(vf_clip_coef, argument, bad, monkeypatch) -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(2, 8) for _ in range(7)]
    tensors[argument][1, 3] = bad
    results = []
    for usable in (True, False):
        if not usable:
            monkeypatch.setattr("engram.training.ppo.ppo_kernel_usable", lambda *_: False)
        arguments = [tensor.clone().requires_grad_(number < 3) for number, tensor in enumerate(tensors)]
        losses = ppo_loss(*arguments, torch.ones(2, 8), PPO(ent_coef=0.01, vf_clip_coef=vf_clip_coef))
        losses.total.backward()
        results.append([value.detach() for value in losses[:6]] + [tensor.grad for tensor in arguments[:3]])
    for kernel, definition in zip(*results, strict=True):
        assert torch.equal(torch.isfinite(kernel), torch.isfinite(definition))
        finite = torch.isfinite(definition)
        assert torch.allclose(kernel[finite], definition[finite], atol=1e-5)
