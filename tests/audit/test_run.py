"""Running an audit from Python: what it returns, raises, and leaves alone."""

from functools import partial

import pytest
import torch
from audit.broken.memory import StoredWithItsGraph, TruncationIgnored
from audit.broken.wrapper import OwnForward, Small
from support.playing import play, vector_env

from engram import MettaAgent
from engram.audit import AuditError, assert_memory_is_right, cheap_checks, check, run_audit
from engram.audit.checks import CHEAP, CHECKS
from engram.audit.context import AuditSizes
from engram.audit.result import CannotAuditError
from engram.audit.run import select_checks
from engram.settings import UserError

SMALL, QUICK = AuditSizes(4, 4, 8), ["detachment", "row_isolation", "replay"]


def test_a_policy_that_is_right_gives_a_report() -> None:
    report = check(Small(vector_env()), vector_env(), only=QUICK, sizes=SMALL)
    assert report.passed
    assert [result.name for result in report.results] == QUICK
    assert report.policy == "Small"


def test_a_class_is_built_for_the_environment_and_tried_with_options() -> None:
    report = check(Small, vector_env(), only=["configuration", "weight_clipping"])
    assert [result.status for result in report.results] == ["pass", "pass"]


def test_an_agent_is_audited_by_its_policy() -> None:
    agent = MettaAgent(vector_env(), Small(vector_env()))
    assert check(agent, vector_env(), only=["detachment"]).policy == "Small"


def test_a_failure_is_an_assertion_with_the_whole_report() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_memory_is_right(TruncationIgnored(vector_env()), vector_env(), only=["boundary_acting"])
    assert isinstance(caught.value, AuditError)
    text = " ".join(str(caught.value).split())
    assert "truncateds: memory is not cleared at all" in text
    assert "An agent begins its episode with memories of another one" in text
    assert "TruncationIgnored (tests/audit/broken/memory.py" in text
    assert "Episodes also end by truncateds" in text
    assert [result.name for result in caught.value.report.failures] == ["boundary_acting"]


def test_the_policy_its_memory_its_gradients_and_the_random_state_are_left_as_they_are() -> None:
    policy = Small(vector_env())
    play(policy, 4, 3, 0.1)
    weights = {name: value.clone() for name, value in policy.state_dict().items()}
    memory, random = policy.get_memory(), torch.get_rng_state()
    check(policy, vector_env(), only=[name for name in CHECKS if name != "compile"], sizes=SMALL)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, weights[name]) for name, value in policy.state_dict().items())
    assert all(torch.equal(row, policy.get_memory()[0][i]) for i, row in memory[0].items())
    assert all(parameter.grad is None for parameter in policy.parameters())
    assert policy.training


def test_the_same_seed_gives_the_same_report() -> None:
    make = partial(Small, vector_env())
    one, two = (run_audit(make, vector_env(), only=QUICK, seed=3, sizes=SMALL) for _ in range(2))
    assert [result.measured for result in one.results] == [result.measured for result in two.results]


def test_cheap_checks_are_for_a_policy_in_training() -> None:
    policy = OwnForward(vector_env())
    play(policy, 4, 3, 0.1)
    with torch.no_grad():
        results = cheap_checks(MettaAgent(vector_env(), policy), vector_env())
    assert [result.name for result in results] == list(CHEAP)
    assert all(result.status == "pass" for result in results)
    assert not all(result.passed for result in cheap_checks(StoredWithItsGraph(vector_env()), vector_env()))


def test_checks_can_be_named_in_any_way_they_are_written() -> None:
    assert [c.name for c in select_checks(["row-isolation", " replay "])] == ["row_isolation", "replay"]
    assert [c.name for c in select_checks([])] == list(CHECKS)
    with pytest.raises(UserError, match="no check 'repaly'; did you mean replay"):
        select_checks(["repaly"])


def test_what_cannot_be_built_or_called_is_no_failure_but_an_error() -> None:
    class Unbuildable(Small):
        def __init__(self, env):
            raise RuntimeError("no weights found")

    class Uncallable(Small):
        def encode_observations(self, observations):
            raise RuntimeError("expects images")

    with pytest.raises(CannotAuditError, match="cannot be built: RuntimeError: no weights found"):
        run_audit(partial(Unbuildable, vector_env()), vector_env())
    with pytest.raises(CannotAuditError, match=r"cannot be called to act .* expects images in encode_observations"):
        run_audit(partial(Uncallable, vector_env()), vector_env())
    with pytest.raises(UserError, match="a list cannot be audited"):
        run_audit(lambda: [1], vector_env())
    with pytest.raises(UserError, match="unknown 'rllib'; choose one of td"):
        run_audit(partial(Small, vector_env()), vector_env(), adapter="rllib")


def test_every_check_says_all_that_it_has_to() -> None:
    for found in CHECKS.values():
        assert found.question.endswith("?"), found.name
        assert found.effect.endswith("."), found.name
        assert found.fix.endswith("."), found.name
        assert found.methods, found.name
