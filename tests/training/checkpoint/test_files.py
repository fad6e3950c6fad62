"""Checkpoint files are complete or absent."""

import json
import random
import shutil

import pytest
import torch

from engram.training.checkpoint import files as checkpoints
from engram.training.checkpoint.files import (
    BadCheckpointError,
    load_checkpoint,
    load_latest,
    save_best,
    save_checkpoint,
)
from engram.training.checkpoint.listing import list_checkpoints

GROUPS = {"weights": {"a": torch.arange(6.0).view(2, 3).t(), "b": torch.tensor([True])}, "memory": {}}


def save(directory, epoch: int = 1, keep: int = 3, **state):
    return save_checkpoint(directory, epoch, GROUPS, {"epoch": epoch, **state}, keep)


def test_a_saved_checkpoint_loads_unchanged(tmp_path) -> None:
    loaded = load_checkpoint(save(tmp_path, name="x"))
    assert torch.equal(loaded.groups["weights"]["a"], GROUPS["weights"]["a"])
    assert loaded.state == {"epoch": 1, "name": "x"}


def test_only_the_last_few_are_kept(tmp_path) -> None:
    for epoch in (1, 2, 10, 1_000_000):
        save(tmp_path, epoch, keep=2)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["epoch_000010", "epoch_1000000"]


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "manifest"])
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_is_used(tmp_path, damage: str) -> None:
    save(tmp_path, 1)
    newest = save(tmp_path, 2)
    file = newest / ("manifest.json" if damage == "manifest" else "weights.safetensors")
    content = bytearray(file.read_bytes())
    if damage == "remove":
        file.unlink()
    elif damage == "flip":
        content[-3] ^= 1
        file.write_bytes(content)
    else:
        file.write_bytes(content[: len(content) // 2])
    with pytest.raises(BadCheckpointError):
        load_checkpoint(newest)
    loaded, problems = load_latest(tmp_path)
    assert loaded is not None
    assert loaded.state["epoch"] == 1
    assert len(problems) == 1
    assert newest.name in problems[0]


def test_a_failed_save_keeps_the_last_checkpoint_and_leaves_no_files(tmp_path, monkeypatch) -> None:
    save(tmp_path, 1)

    def full_disk(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "save_file", full_disk)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["epoch_000001"]
    assert load_latest(tmp_path)[0] is not None


def test_leftovers_of_a_killed_save_are_cleared_away_and_never_loaded(tmp_path) -> None:
    (tmp_path / ".writing_000001").mkdir()
    assert load_latest(tmp_path) == (None, [])
    save(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["epoch_000002"]


def test_the_manifest_covers_every_file(tmp_path) -> None:
    path = save(tmp_path)
    manifest = json.loads((path / "manifest.json").read_text())
    assert set(manifest) == {p.name for p in path.iterdir()} - {"manifest.json"}


def test_the_best_is_kept_beside_the_last_few_and_replaced_whole(tmp_path) -> None:
    save_best(tmp_path, 1, GROUPS, {"epoch": 1})
    for epoch in (1, 2, 3):
        save(tmp_path, epoch, keep=1)
    assert load_checkpoint(tmp_path / "best").state == {"epoch": 1}
    assert [path.name for path in list_checkpoints(tmp_path)] == ["epoch_000003"]
    save_best(tmp_path, 3, GROUPS, {"epoch": 3})
    assert load_checkpoint(tmp_path / "best").state == {"epoch": 3}
    assert {path.name for path in tmp_path.iterdir()} == {"best", "best_epoch_000003", "epoch_000003"}
    assert load_latest(tmp_path)[0].path.name == "epoch_000003"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "step", ["engram.training.checkpoint.files.save_file", "pathlib.Path.symlink_to", "pathlib.Path.replace"]
)
def test_a_failed_save_keeps_the_best_checkpoint(tmp_path, monkeypatch, step: str) -> None:
    save_best(tmp_path, 1, GROUPS, {"epoch": 1})

    def killed(*_args, **_kwargs):
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(step, killed)
        with pytest.raises(OSError, match="killed"):
            save_best(tmp_path, 2, GROUPS, {"epoch": 2})
    assert load_checkpoint(tmp_path / "best").state == {"epoch": 1}
    save_best(tmp_path, 2, GROUPS, {"epoch": 2})
    assert {path.name for path in tmp_path.iterdir()} == {"best", "best_epoch_000002"}


def test_no_flipped_bit_goes_unnoticed(tmp_path) -> None:
    path, chance = save(tmp_path), random.Random(0)
    for file in path.iterdir():
        content = file.read_bytes()
        for place in chance.sample(range(len(content)), min(100, len(content))):
            damaged = bytearray(content)
            damaged[place] ^= 1 << chance.randrange(8)
            file.write_bytes(damaged)
            with pytest.raises(BadCheckpointError):
                load_checkpoint(path)
        file.write_bytes(content)
    assert load_checkpoint(path).state["epoch"] == 1


def test_copies_of_checkpoints_are_never_deleted_or_loaded(tmp_path) -> None:
    save_best(tmp_path, 1, GROUPS, {})
    for name in ("epoch_000001_backup", "best_epoch_000001_backup"):
        shutil.copytree(save(tmp_path, 1), tmp_path / name)
    save_best(tmp_path, 2, GROUPS, {})
    save(tmp_path, 2, keep=1)
    assert load_latest(tmp_path)[0].path.name == "epoch_000002"  # type: ignore[union-attr]
    left = {"best", "best_epoch_000002", "epoch_000002", "best_epoch_000001_backup", "epoch_000001_backup"}
    assert {path.name for path in tmp_path.iterdir()} == left
