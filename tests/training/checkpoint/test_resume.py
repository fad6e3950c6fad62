"""A run keeps its sizes, also where another machine would choose others."""

import pytest
import torch
from support import running

from engram.settings import UserError
from engram.training.checkpoint import resume
from engram.training.checkpoint.files import Checkpoint, load_latest, save_checkpoint
from engram.training.checkpoint.loading import mismatches
from engram.training.checkpoint.resume import sizes_of_run
from engram.training.settings import Trainer
from engram.training.sizes import Sizes

NULL = ("trainer.num_envs=null", "trainer.batch_size=null", "trainer.minibatch_size=null")


def sizes_with(cores: int, stored: Checkpoint | None = None, agents: int = 1, **trainer):
    return sizes_of_run(Trainer(num_workers=0, **trainer), stored, agents, "cpu", cores)


def stored(tmp_path, cores: int, **trainer) -> Checkpoint:
    return Checkpoint(tmp_path, {"sizes": sizes_with(cores, **trainer)._asdict(), "ranks": [{}]}, {})


def test_a_run_resumes_exactly_on_a_machine_with_a_different_number_of_cores(tmp_path, monkeypatch) -> None:
    def run(name: str, cores: int, epochs: int) -> None:
        monkeypatch.setattr("engram.training.run.available_cores", lambda: cores)
        steps = f"trainer.total_timesteps={epochs * 2048}"
        running.run(tmp_path, *NULL, "trainer.update_epochs=1", "trainer.norm_obs=false", steps, name=name)

    run("whole", cores=1, epochs=2)
    run("x", cores=1, epochs=1)
    run("x", cores=3, epochs=2)
    assert running.metrics(tmp_path) == running.metrics(tmp_path, "whole")
    assert "keeping the sizes the run started with, which differ from the defaults here" in running.log(tmp_path)
    assert "keeping the sizes" not in running.log(tmp_path, "whole")
    checkpoint, _ = load_latest(tmp_path / "x" / "checkpoints")
    assert checkpoint is not None
    assert checkpoint.state["sizes"]["num_envs"] == 8


def test_automatic_sizes_are_those_that_the_run_started_with(tmp_path) -> None:
    long = {"total_timesteps": 10_000_000}
    began = stored(tmp_path, cores=2, **long)
    assert sizes_with(16, began, **long) == sizes_with(2, **long)
    assert sizes_with(16, **long) != sizes_with(2, **long)


def test_a_checkpoint_of_different_sizes_is_refused(tmp_path) -> None:
    with pytest.raises(UserError, match=r"run with different sizes \(rows 32, not 64\): start a new run"):
        sizes_with(2, stored(tmp_path, cores=2, batch_size=8192), agents=2, batch_size=8192)


@pytest.mark.parametrize("name", [*resume.KEPT])
def test_a_checkpoint_without_one_of_the_sizes_is_refused(tmp_path, name) -> None:
    damaged = stored(tmp_path, cores=2)
    del damaged.state["sizes"][name]
    with pytest.raises(UserError, match=rf"lacks the sizes {name}: remove it"):
        sizes_with(2, damaged)


def test_every_automatic_size_is_kept_on_resume() -> None:
    left_open = {name for name, field in Trainer.model_fields.items() if field.default is None} & {*Sizes._fields}
    assert {*resume.AUTOMATIC} == left_open - {"num_workers"}


def test_a_different_number_of_ranks_may_change_the_sizes(tmp_path) -> None:
    began = stored(tmp_path, cores=2)
    trainer = Trainer(num_workers=0, num_envs=8, scale_batches_by_world_size=True)
    assert sizes_of_run(trainer, began, 1, "cpu", 16, processes=2).num_envs == 4


def test_tensors_of_wrong_names_shapes_dtypes_and_numbers_are_named() -> None:
    expected = {name: torch.zeros(2) for name in ("a", "b", "c", "d", "e")}
    tensors = {"b": torch.zeros(3), "c": torch.zeros(2, dtype=torch.int64), "d": torch.tensor([0.0, torch.nan])}
    assert mismatches({**tensors, "e": torch.zeros(2), "f": torch.zeros(2)}, expected, finite=tensors) == (
        "a is missing; b is [3], expected [2]; c is int64, expected float32; d holds NaN or infinity; f is unexpected"
    )


@pytest.mark.parametrize(
    ("group", "change", "message"),
    [
        ("optimizer", lambda tensor: tensor.flatten()[:1].clone(), r"0.exp_avg is \[1\], expected"),
        ("optimizer", lambda tensor: tensor.double(), "0.step is float64, expected float32"),
        ("memory", lambda tensor: tensor * torch.nan if tensor.is_floating_point() else tensor, "holds NaN"),
        ("memory", lambda tensor: tensor[..., :1].clone(), "expected"),
        (
            "weights",
            lambda tensor: tensor.half() if tensor.is_floating_point() else tensor,
            "float16, expected float32",
        ),
    ],
)
def test_a_whole_checkpoint_whose_tensors_do_not_fit_is_refused(tmp_path, group: str, change, message: str) -> None:
    """Its checksums are right. A kernel would read beyond a tensor that is too small."""
    running.run(tmp_path, "env=recall", "env.delay=30", epochs=1)
    checkpoint, _ = load_latest(tmp_path / "x" / "checkpoints")
    assert checkpoint is not None
    checkpoint.groups[group] = {name: change(tensor) for name, tensor in checkpoint.groups[group].items()}
    save_checkpoint(tmp_path / "x" / "checkpoints", 2, checkpoint.groups, checkpoint.state)
    with pytest.raises(UserError, match=message):
        running.run(tmp_path, "env=recall", "env.delay=30", epochs=3)
