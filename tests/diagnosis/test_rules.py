"""The diagnosis, on hand-made metrics. `test_real_runs` has runs that really have the faults."""

import math
from itertools import islice

import pytest

from engram.diagnosis import Setup
from engram.diagnosis.diagnose import LiveDiagnosis, diagnose
from engram.stored.metrics import Columns

EPOCHS = 40
SETUP = Setup(
    total_timesteps=1000 * EPOCHS,
    learning_rate=0.001,
    clip_coef=0.2,
    gamma=0.99,
    ent_coef=0.01,
    max_grad_norm=0.5,
    bptt_horizon=64,
    memory="carry",
    uniform_entropy=math.log(4),
)
MEMORY_TASK = SETUP._replace(ceiling=0.25, goal=1.0, delay=8)


def noisy(level: float, epoch: int) -> float:
    return level + 0.02 * math.sin(7.0 * epoch)


def rising(epoch: int) -> float:
    return noisy(min(1.0, 0.1 + 0.04 * epoch), epoch)


def flat(epoch: int) -> float:
    return noisy(0.25, epoch)


def records(returns, **changes):
    usual = {
        "loss/kl": 0.01,
        "loss/clip_fraction": 0.1,
        "loss/entropy": 1.0,
        "value/explained_variance": 0.6,
        "episode/count": 50,
        "episode/length": 10.0,
        "time/environment_seconds": 0.2,
        "time/inference_seconds": 0.3,
        "time/learning_seconds": 0.5,
        "time/steps_per_second": 1000.0,
    }
    for epoch in range(1, EPOCHS + 1):
        values = {name: value(epoch) if callable(value) else value for name, value in (usual | changes).items()}
        yield {
            "epoch": epoch,
            "steps": 1000 * epoch,
            "return": returns(epoch),
            "episode/return": returns(epoch),
            **values,
        }


def names(returns, setup: Setup = SETUP, **changes) -> list[str]:
    return [finding.name for finding in diagnose(Columns(records(returns, **changes)), setup).findings]


SOLVED = {"loss/kl": 0.0, "loss/clip_fraction": 0.0, "loss/entropy": 0.0, "value/explained_variance": 0.0}


def test_a_run_that_learns_is_healthy_whatever_its_losses():
    alarming = {"loss/kl": 3.0, "loss/clip_fraction": 0.8, "loss/entropy": 0.0, "value/explained_variance": -1.0}
    for changes in ({}, SOLVED, alarming):
        diagnosis = diagnose(Columns(records(rising, **changes)), SETUP)
        assert (diagnosis.verdict, diagnosis.findings) == ("healthy", [])


def test_a_run_that_loses_a_little_of_what_it_has_learned_is_healthy():
    assert names(lambda epoch: rising(epoch) if epoch < 30 else noisy(0.8, epoch)) == []


def test_a_run_that_begins_solved_is_healthy():
    assert diagnose(Columns(records(lambda epoch: 1.0, **SOLVED)), MEMORY_TASK).verdict == "healthy"


@pytest.mark.parametrize("returns", [flat, lambda epoch: 0.0])
def test_actions_that_are_never_allowed_are_mentioned_if_nothing_is_learned(returns):
    def told(returns, **changes) -> str:
        diagnosis = diagnose(Columns(records(returns, **changes)), SETUP)
        return " ".join([diagnosis.summary, *(finding.advice for finding in diagnosis.findings)])

    masked = {"observation/masked_actions": lambda epoch: 2 + epoch % 2}
    assert "forbids at least 2 actions in every sampled step" in told(returns, **masked)
    assert "mask" not in told(rising, **masked)
    assert "mask" not in told(returns, **{"observation/masked_actions": lambda epoch: epoch % 2})


def test_tiny_rewards_that_are_learned_nevertheless_are_healthy():
    assert names(lambda epoch: 1e-12 * rising(epoch)) == []


def test_a_run_that_does_not_learn_for_no_known_reason_is_unknown():
    diagnosis = diagnose(Columns(records(flat)), SETUP)
    assert (diagnosis.verdict, diagnosis.findings) == ("unknown", [])
    assert "nothing was found that explains it" in diagnosis.summary


def without_episodes(epochs=EPOCHS):
    return [{**record, "episode/count": 0, "episode/return": None} for record in records(flat)][:epochs]


def test_a_run_without_episodes_is_told_so():
    (finding,) = diagnose(Columns(without_episodes()), SETUP).findings
    assert finding.line == "No episode ever ended: none in 40,000 steps"
    live = LiveDiagnosis(SETUP)
    assert [found for record in without_episodes() for found in live.add(record)] == [
        finding._replace(evidence="none in 10,000 steps")
    ]


def test_a_short_run_without_episodes_is_not_judged():
    diagnosis = diagnose(Columns(without_episodes(8)), SETUP)
    assert (diagnosis.verdict, diagnosis.findings) == ("early", [])
    assert diagnosis.summary.startswith("No episode has ended in 8,000 steps")


def test_a_short_discount_is_no_fault_if_the_run_learns_or_episodes_are_short():
    assert names(rising, SETUP._replace(gamma=0.0)) == []
    assert names(flat, SETUP._replace(gamma=0.8)) == []


def test_a_policy_that_sees_its_previous_actions_may_do_without_observations():
    assert names(rising, SETUP._replace(sees_previous=True), **{"observation/changes": 0.0}) == []


def test_a_run_that_learned_in_its_first_epochs_is_healthy():
    assert diagnose(Columns(records(lambda epoch: noisy(0.1 if epoch < 3 else 1.0, epoch))), SETUP).verdict == "healthy"


def test_shorter_episodes_with_negative_returns_are_mentioned():
    columns = Columns(records(lambda epoch: rising(epoch) - 2, **{"episode/length": lambda epoch: 50 - epoch}))
    diagnosis = diagnose(columns, SETUP)
    assert (diagnosis.verdict, diagnosis.findings) == ("healthy", [])
    assert "check the sign of the reward" in diagnosis.summary


@pytest.mark.parametrize(("offset", "mentioned"), [(-1.0, True), (-0.9, False), (-1.5, False)])
def test_negative_returns_that_end_at_nothing_are_mentioned(offset, mentioned):
    columns = Columns(records(lambda epoch: min(1, epoch / 20) + offset))
    diagnosis = diagnose(columns, SETUP)
    assert (diagnosis.verdict, diagnosis.findings) == ("healthy", [])
    assert ("check the sign of the reward" in diagnosis.summary) == mentioned


@pytest.mark.parametrize(
    ("expected", "returns", "setup", "changes"),
    [
        ("No reward ever seen", lambda epoch: 0.0, SETUP, {}),
        ("Advantages all alike", lambda epoch: -200.0, SETUP, {}),
        ("Rewards are tiny", lambda epoch: 1e-12 * flat(epoch), SETUP, {}),
        ("The policy does not move", flat, SETUP, {"loss/kl": 1e-9, "loss/clip_fraction": 0.0}),
        (
            "Learning rate near 0",
            flat,
            SETUP._replace(learning_rate=1e-8),
            {"loss/kl": 1e-9, "loss/clip_fraction": 0.0},
        ),
        (
            "Learning rate near 0",
            flat,
            SETUP,
            {"schedule/optimizer.learning_rate": lambda epoch: 0.001 if epoch < 10 else 0.0},
        ),
        ("KL divergence explodes", flat, SETUP, {"loss/kl": lambda epoch: 5.0 if epoch == 3 else 0.01}),
        ("Learning rate too high", flat, SETUP._replace(learning_rate=0.1), {"loss/kl": 0.5}),
        ("Every update is clipped", flat, SETUP, {"loss/clip_fraction": 0.9}),
        ("The entropy bonus outweighs the reward", flat, SETUP._replace(ent_coef=2.0), {"loss/entropy": math.log(4)}),
        ("Entropy collapsed", flat, SETUP, {"loss/entropy": 0.001}),
        ("Values explain nothing", flat, SETUP, {"value/explained_variance": -0.01}),
        ("Memory is not used", flat, MEMORY_TASK, {}),
        ("bptt_horizon is shorter than the delay", flat, MEMORY_TASK._replace(bptt_horizon=8), {}),
        ("Not a number", rising, SETUP, {"loss/policy": lambda epoch: math.nan if epoch == EPOCHS else 0.1}),
        ("The environment is the bottleneck", rising, SETUP, {"time/environment_seconds": 9.0}),
        ("The discount hides later rewards", flat, SETUP._replace(gamma=0.5), {}),
        ("Observations are huge", flat, SETUP, {"observation/largest": 1e6}),
        ("Observations are tiny", flat, SETUP, {"observation/largest": 1e-6}),
        ("Observations never change", rising, SETUP, {"observation/changes": 0.0}),
        ("The return fell", lambda epoch: noisy(1.0 if epoch < 30 else 0.1, epoch), SETUP, {}),
        ("The return fell", lambda epoch: noisy(max(0.1, 1.0 - 0.04 * epoch), epoch), SETUP, {}),
        ("target_kl ends the updates too early", flat, SETUP._replace(target_kl=1e-6), {"loss/kl": 5e-7}),
        ("Learned, then lost", lambda epoch: noisy(0.1 if epoch < 3 or epoch > 30 else 1.0, epoch), SETUP, {}),
        ("Learned, then lost", lambda epoch: rising(epoch) if epoch < 25 else noisy(0.1, epoch), SETUP, {}),
    ],
)
def test_each_fault_is_named(expected, returns, setup, changes):
    assert names(returns, setup, **changes) == [expected]


def test_a_learning_rate_that_is_too_high_explains_all_that_follows_from_it():
    ruined = {"loss/kl": 50.0, "loss/clip_fraction": 0.9, "loss/entropy": 0.0, "value/explained_variance": -5.0}
    assert names(flat, MEMORY_TASK._replace(learning_rate=5.0), **ruined) == ["Learning rate too high"]


def test_a_policy_that_was_destroyed_has_not_learned_although_its_return_rose():
    """Always the same action earns more than random ones in many tasks."""
    ruined = {"loss/kl": lambda epoch: 5e5 if epoch < 5 else 0.0, "value/explained_variance": -5.0}
    fast = SETUP._replace(learning_rate=5.0)
    assert names(rising, fast, **ruined) == ["Learning rate too high"]
    assert names(rising, fast, **ruined | {"value/explained_variance": 0.6}) == []
    assert names(rising, fast._replace(ceiling=0.25, goal=1.0), **ruined) == []  # it is solved


def test_an_agent_that_acts_at_random_is_not_said_to_lack_memory():
    assert names(flat, MEMORY_TASK, **{"loss/entropy": math.log(4)}) == []


def test_a_return_that_still_rises_from_the_ceiling_gets_no_alarm():
    def late(epoch):
        return noisy(0.25 if epoch < 25 else 0.25 + 0.01 * (epoch - 25), epoch)

    assert names(late, MEMORY_TASK) == []


def test_a_steep_rise_in_a_short_run_is_not_taken_for_noise():
    """The first epochs of MiniGrid-Empty-5x5, which had been called unknown."""
    returns = [0.202, 0.199, 0.234, 0.197, 0.364, 0.438, 0.507, 0.61]
    rising = islice(records(lambda epoch: returns[epoch - 1]), len(returns))
    assert diagnose(Columns(rising), SETUP).verdict == "healthy"


def test_a_return_below_that_of_agents_without_memory_is_not_blamed_on_memory():
    setup = MEMORY_TASK._replace(ceiling=0.5)
    diagnosis = diagnose(Columns(records(flat)), setup)
    assert diagnosis.verdict == "unknown"
    assert "0.5 is possible without memory: train for more steps first" in diagnosis.summary


def test_without_memory_nobody_expects_more_than_the_ceiling():
    columns = Columns(records(flat, **{"value/explained_variance": 0.0}))
    diagnosis = diagnose(columns, MEMORY_TASK._replace(memory="off"))
    assert (diagnosis.verdict, diagnosis.findings) == ("healthy", [])


def test_while_training_each_fault_is_told_once_when_it_is_clear():
    live, told = LiveDiagnosis(SETUP), []
    for record in records(lambda epoch: 0.0, **{"loss/entropy": 0.0}):
        told += [(record["epoch"], finding.name) for finding in live.add(record)]
    assert told == [(10, "No reward ever seen")]


def test_a_fault_that_lasts_is_told_only_once():
    live, told = LiveDiagnosis(SETUP), []
    for record in records(rising, **{"time/environment_seconds": 9.0}):
        told += [finding.name for finding in live.add(record)]
    assert told == ["The environment is the bottleneck"]


def test_while_training_a_healthy_run_is_left_alone():
    live = LiveDiagnosis(MEMORY_TASK)
    assert [finding for record in records(rising, **SOLVED) for finding in live.add(record)] == []
    assert live.result().verdict == "healthy"


def test_a_resumed_run_remembers_what_came_before():
    earlier = list(records(lambda epoch: 0.0))
    live = LiveDiagnosis(SETUP._replace(total_timesteps=50_000), Columns(earlier))
    (finding,) = live.add({**earlier[-1], "epoch": 41, "steps": 41_000})
    assert finding.evidence == "all 2,050 episodes returned 0"


def test_values_that_explain_nothing_without_memory_are_told_to_remember():
    setup = SETUP._replace(memory="off")
    found = diagnose(Columns(records(flat, **{"value/explained_variance": -0.01})), setup).findings
    assert found[0].name == "Values explain nothing"
    assert "trainer.memory=carry" in found[0].advice


def test_a_schedule_that_rises_too_high_is_named_as_the_cause():
    changes = {"loss/kl": 5.0, "schedule/optimizer.learning_rate": lambda epoch: 0.02 * epoch}
    found = diagnose(Columns(records(flat, **changes)), SETUP).findings
    assert (found[0].name, "trainer.schedule" in found[0].advice) == ("Learning rate too high", True)
