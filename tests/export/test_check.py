"""The comparison of an exported policy with the original, on steps that are wrong in one number."""

import numpy as np
import pytest
import torch

from engram.export import check
from engram.export.program import PolicyStep
from engram.settings import UserError

CORES = ("lstm", "gru", "mingru", "lru", "attention")
CHANGES = {"log_probs": 1, "value": 2, "log_std": 1}  # the output in which each number is


def as_exported(step: PolicyStep, change=lambda outputs, call: None):
    """The step itself, called as a file is; `change` may edit its outputs in place."""
    calls = iter(range(10**6))

    def run(observations, memory, starts):
        tensors = {name: torch.from_numpy(np.ascontiguousarray(field)) for name, field in observations.items()}
        with torch.no_grad():
            outputs = [each.numpy() for each in step(tensors, torch.from_numpy(memory), torch.from_numpy(starts))]
        change(outputs, next(calls))
        return outputs

    return run


def compared(made, change=lambda outputs, call: None, steps: int = 12) -> check.Agreement:
    step = PolicyStep(made.agent)
    return check.compare(made.agent, step, as_exported(step, change), made.settings.env, steps=steps)


@pytest.mark.parametrize("core", CORES)
def test_a_step_that_carries_its_memory_agrees_over_many_episodes(make, core):
    found = compared(make("env=recall", f"py_agent.core={core}", "py_agent.hidden_size=16"), steps=300)
    assert found.resets > 20 * check.ENVIRONMENTS
    assert found.ties == 0
    assert found.difference < 1e-5


@pytest.mark.parametrize(
    ("words", "name"),
    [(("env=recall",), "log_probs"), (("env=recall",), "value"), (("env=gym", "env.id=Pendulum-v1"), "log_std")],
    ids=["log_probs", "value", "log_std"],
)
def test_one_number_that_differs_is_refused_by_its_name(make, words, name):
    def change(outputs, call):
        outputs[CHANGES[name]].flat[-1] += 1e-3 * (call == 5)

    with pytest.raises(UserError, match=rf"at step \d+: {name} of row"):
        compared(make(*words, "py_agent.hidden_size=16"), change)


def test_an_action_that_is_less_likely_is_refused(make):
    def change(outputs, call):
        outputs[0][...] = outputs[1].argmin(-1)

    with pytest.raises(UserError, match="at step 1: action of row"):
        compared(make("env=recall", "py_agent.hidden_size=16"), change)


def test_equally_likely_actions_are_counted_and_less_likely_ones_refused(make):
    def second_best(gap):
        def change(outputs, call):
            outputs[0][...] = outputs[1].argsort(-1)[:, -2]

        made = make("env=recall", "py_agent.hidden_size=16")
        with torch.no_grad():  # logits of actions 0 and 1 differ by the gap, all others are far below
            output = made.agent.policy.actor.output
            output.weight.zero_()
            output.bias.copy_(torch.tensor([gap, 0.0, -5.0, -5.0]))
        return compared(made, change)

    assert second_best(1e-6).ties == second_best(5e-6).ties == 12 * check.ENVIRONMENTS
    with pytest.raises(UserError, match="at step 1: action of row"):
        second_best(2e-5)


def test_ties_are_told():
    found = check.Agreement(steps=4, decisions=12, resets=3, ties=0, difference=1e-7)
    assert found.describe("torch").startswith(
        "the policy's actions in all of 12 decisions of 4 steps with 3 resets, in"
    )
    assert "in 11 of 12 decisions of 4" in found._replace(ties=1).describe("torch")
    assert "in the other one it took an action that is equally likely" in found._replace(ties=1).describe("torch")
    assert "in the other 2 it took" in found._replace(ties=2).describe("torch")


def test_memory_that_survives_an_episode_start_is_refused(make):
    made = make("env=recall", "py_agent.hidden_size=16")
    step = PolicyStep(made.agent)
    run, calls = as_exported(step), iter(range(1000))

    def forgetless(observations, memory, starts):
        return run(observations, memory, starts & (next(calls) == 0))

    with pytest.raises(UserError, match="disagrees with the original"):
        check.compare(made.agent, step, forgetless, made.settings.env, steps=60)


def test_numbers_within_rounding_agree(make):
    def change(outputs, call):
        outputs[2] += 1e-6

    found = compared(make("env=recall", "py_agent.hidden_size=16"), change)
    assert 5e-7 < found.difference < 1e-5
