"""Checkpoints that do not fit are refused, by the names of their tensors."""

import pytest
import torch
from support import running

from engram.settings import UserError
from engram.training.checkpoint.files import load_latest, save_checkpoint
from engram.training.checkpoint.loading import mismatches


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
