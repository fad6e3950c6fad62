"""A policy that learns from one that is trained already."""

import math

import pytest
import torch
from support.running import InterruptAfter, metrics, run

from engram.settings import UserError
from engram.training.kickstart import imitation

TASK = ("env=recall", "env.delay=3", "env.delay_jitter=2", "env.truncate=0.05", "trainer.checkpoint.interval=10")


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """A directory with the run of a teacher."""
    directory = tmp_path_factory.mktemp("teacher")
    run(directory, *TASK, "trainer.optimizer.learning_rate=0.003", name="teacher", epochs=60)
    return directory / "teacher"


def test_the_distance_from_the_teacher_equals_a_hand_computation() -> None:
    teacher = torch.tensor([[[0.25, 0.75], [0.5, 0.5]]]).log()
    student = torch.tensor([[[0.5, 0.5], [0.1, 0.9]]]).log()
    weights = torch.tensor([[2.0, 0.0]])
    found = imitation(
        student, torch.tensor([[1.0, 9.0]]), teacher, torch.tensor([[3.0, 0.0]]), weights, torch.tensor(1)
    )
    assert found.action.item() == pytest.approx(2 * math.log(2))
    assert found.value.item() == pytest.approx(8)


@pytest.mark.parametrize("memory", ["carry", "reset"])
def test_a_teacher_with_the_same_weights_and_memory_has_distance_zero(tmp_path, taught, memory: str) -> None:
    still = ("trainer.optimizer.learning_rate=1e-12", f"trainer.memory={memory}", "trainer.norm_obs=false")
    run(tmp_path, *TASK, *still, f"init_from={taught}", f"trainer.kickstart.teacher={taught}", epochs=4)
    for record in metrics(tmp_path)[1:]:
        same = record["loss/teacher_value"] < 1e-8
        assert same == (memory == "carry")  # a policy that is made to forget is not what its teacher is
        if same:
            assert record["loss/teacher_action"] == pytest.approx(record["loss/entropy"], abs=1e-5)


def test_a_policy_comes_closer_to_its_teacher(tmp_path, taught) -> None:
    words = (*TASK, "seed=7", f"trainer.kickstart.teacher={taught / 'checkpoints' / 'epoch_000060'}")
    run(tmp_path, *words, "trainer.optimizer.learning_rate=0.003", epochs=15)
    records = metrics(tmp_path)
    assert records[-1]["loss/teacher_action"] < records[0]["loss/teacher_action"] - 0.1
    assert "loss/teacher_action" not in metrics(taught.parent, "teacher")[0]


def test_the_teacher_is_annealed_and_then_no_longer_evaluated(tmp_path, taught) -> None:
    words = (
        f"trainer.kickstart.teacher={taught}",
        "trainer.kickstart.action_coef=2",
        "trainer.kickstart.anneal_steps=192",
    )
    run(tmp_path, *TASK, *words, epochs=4)
    records = metrics(tmp_path)
    assert [record["schedule/kickstart.action_coef"] for record in records] == [1.5, 0.5, 0, 0]
    assert ["loss/teacher_action" in record for record in records] == [True, True, False, False]


def test_a_kickstarted_run_resumes_exactly(tmp_path, taught) -> None:
    words = (*TASK, "trainer.checkpoint.interval=1", f"trainer.kickstart.teacher={taught}")
    run(tmp_path, *words, name="whole", epochs=5)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, *words, name="pieces", epochs=5, display=InterruptAfter(3))
    run(tmp_path, *words, name="pieces", epochs=5)
    assert metrics(tmp_path, "pieces") == metrics(tmp_path, "whole")


def test_an_unusable_teacher_is_a_user_error(tmp_path, taught) -> None:
    with pytest.raises(UserError, match=r"trainer\.kickstart\.teacher: no such directory: nowhere"):
        run(tmp_path, "trainer.kickstart.teacher=nowhere", name="a")
    with pytest.raises(UserError, match="actions"):
        run(tmp_path, "env=gym", "env.id=CartPole-v1", f"trainer.kickstart.teacher={taught}", name="b")
    (taught / "settings.yaml").rename(taught / "settings.aside")
    try:
        with pytest.raises(UserError, match=r"settings\.yaml does not describe the teacher's policy"):
            run(tmp_path, f"trainer.kickstart.teacher={taught}", name="c")
    finally:
        (taught / "settings.aside").rename(taught / "settings.yaml")
