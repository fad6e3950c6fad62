"""Checkpoint files are complete or absent."""

import hashlib
import json
import os
import random
import shutil

import pytest
import torch
from safetensors import SafetensorError

from engram.training.checkpoint import files as checkpoints
from engram.training.checkpoint import list_checkpoints
from engram.training.checkpoint.checkpoints import Retention
from engram.training.checkpoint.files import (
    BadCheckpointError,
    load_checkpoint,
    load_latest,
    save_best,
    save_checkpoint,
)

GROUPS = {"weights": {"a": torch.arange(6.0).view(2, 3).t(), "b": torch.tensor([True])}, "memory": {}}


SPEC = {
    "name": "x",
    "observation": {"kind": "vector", "shape": [4], "dtype": "float32"},
    "action": {"kind": "discrete", "n": 2},
    "agents": 1,
    "window": [0, 0],
    "features": [],
    "action_names": [],
    "action_max_params": None,
    "memoryless_ceiling": None,
    "mean_return_goal": None,
}


def state_of(epoch: int, **more) -> dict:
    return {
        "progress": {"steps": 10 * epoch, "epoch": epoch, "seconds": 1.5},
        "recent_returns": [1.0],
        "schedules": {},
        "explosion": {"norms": [], "above": 0},
        "env_spec": SPEC,
        "policy_spec": SPEC,
        "sizes": {"rows": 1},
        "ranks": [{"has_env_state": False}],
        **more,
    }


def save(directory, epoch: int = 1, keep: int = 3, **more):
    path = save_checkpoint(directory, epoch, GROUPS, state_of(epoch, **more))
    Retention(directory, keep).clean(path)
    return path


def epoch_of(path) -> int:
    return load_checkpoint(path).state["progress"]["epoch"]


def seal(path) -> None:
    """Update the checksums to the current files."""
    files = [file for file in path.iterdir() if file.name != "manifest.json"]
    manifest = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    (path / "manifest.json").write_text(json.dumps(manifest))


def test_a_saved_checkpoint_loads_unchanged(tmp_path) -> None:
    loaded = load_checkpoint(save(tmp_path, name="x"))
    assert torch.equal(loaded.groups["weights"]["a"], GROUPS["weights"]["a"])
    assert loaded.state == state_of(1, name="x")


def test_only_the_last_few_are_kept(tmp_path) -> None:
    for epoch in (1, 2, 10, 1_000_000):
        save(tmp_path, epoch, keep=2)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["epoch_000010", "epoch_1000000"]


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "manifest"])
def test_a_damaged_checkpoint_is_noticed_and_the_previous_one_is_used(tmp_path, damage: str) -> None:
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
    assert loaded.state["progress"]["epoch"] == 1
    assert len(problems) == 1
    assert newest.name in problems[0]


def test_a_failed_save_keeps_the_last_checkpoint_and_leaves_no_files(tmp_path, monkeypatch) -> None:
    save(tmp_path, 1)

    def full_disk(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full_disk)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["epoch_000001"]
    assert load_latest(tmp_path)[0] is not None


def test_checkpoints_without_a_manifest_do_not_hide_an_older_one_however_many_there_are(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(checkpoints, "MAX_TRIED", 2)
    save(tmp_path, 1)
    for epoch in range(2, 9):
        (tmp_path / f"epoch_{epoch:06d}").mkdir()
    loaded, problems = load_latest(tmp_path)
    assert loaded is not None
    assert (loaded.path.name, len(problems)) == ("epoch_000001", 7)


def test_only_so_many_checkpoints_with_a_manifest_are_tried(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(checkpoints, "MAX_TRIED", 2)
    for epoch in (1, 2, 3, 4):
        save(tmp_path, epoch)
    for epoch in (2, 3, 4):
        damage(tmp_path / f"epoch_{epoch:06d}")
    loaded, problems = load_latest(tmp_path)
    assert loaded is None
    assert problems[-1].endswith("epoch_000002 and older ones were not tried")


def test_leftovers_of_a_killed_save_are_deleted_and_never_loaded(tmp_path) -> None:
    (tmp_path / ".writing_000001").mkdir()
    assert load_latest(tmp_path) == (None, [])
    save(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["epoch_000002"]


def test_the_manifest_covers_every_file(tmp_path) -> None:
    path = save(tmp_path)
    manifest = json.loads((path / "manifest.json").read_text())
    assert set(manifest) == {p.name for p in path.iterdir()} - {"manifest.json"}


def test_the_best_is_kept_beside_the_last_few_and_replaced_whole(tmp_path) -> None:
    save_best(tmp_path, 1, GROUPS, state_of(1))
    for epoch in (1, 2, 3):
        save(tmp_path, epoch, keep=1)
    assert epoch_of(tmp_path / "best") == 1
    assert [path.name for path in list_checkpoints(tmp_path)] == ["epoch_000003"]
    save_best(tmp_path, 3, GROUPS, state_of(3))
    assert epoch_of(tmp_path / "best") == 3
    assert {path.name for path in tmp_path.iterdir()} == {"best", "best_epoch_000003", "epoch_000003"}
    assert load_latest(tmp_path)[0].path.name == "epoch_000003"  # type: ignore[union-attr]


@pytest.mark.parametrize("step", ["safetensors.torch.save_file", "pathlib.Path.symlink_to", "pathlib.Path.replace"])
def test_a_failed_save_keeps_the_best_checkpoint(tmp_path, monkeypatch, step: str) -> None:
    save_best(tmp_path, 1, GROUPS, state_of(1))

    def killed(*_args, **_kwargs):
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(step, killed)
        with pytest.raises(OSError, match="killed"):
            save_best(tmp_path, 2, GROUPS, state_of(2))
    assert epoch_of(tmp_path / "best") == 1
    save_best(tmp_path, 2, GROUPS, state_of(2))
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
    assert epoch_of(path) == 1


def test_copies_of_checkpoints_are_never_deleted_or_loaded(tmp_path) -> None:
    save_best(tmp_path, 1, GROUPS, state_of(1))
    for name in ("epoch_000001_backup", "best_epoch_000001_backup"):
        shutil.copytree(save(tmp_path, 1), tmp_path / name)
    save_best(tmp_path, 2, GROUPS, state_of(2))
    save(tmp_path, 2, keep=1)
    assert load_latest(tmp_path)[0].path.name == "epoch_000002"  # type: ignore[union-attr]
    left = {"best", "best_epoch_000002", "epoch_000002", "best_epoch_000001_backup", "epoch_000001_backup"}
    assert {path.name for path in tmp_path.iterdir()} == left


def damage(path) -> None:
    (path / "state.json").write_text("{}")


def test_unreadable_checkpoints_do_not_count_and_newer_ones_stay(tmp_path) -> None:
    for epoch in (7, 8, 9):
        damage(save(tmp_path, epoch))
    (tmp_path / "epoch_000010").mkdir()
    (tmp_path / "epoch_000011").touch()
    for epoch in (4, 5, 6):
        save(tmp_path, epoch, keep=2)
    assert load_latest(tmp_path)[0].path.name == "epoch_000006"  # type: ignore[union-attr]
    assert [int(path.name[6:]) for path in list_checkpoints(tmp_path)] == [5, 6, 7, 8, 9, 10, 11]


def test_a_readable_checkpoint_is_kept_in_place_of_unreadable_ones(tmp_path) -> None:
    save(tmp_path, 1)
    for epoch in (2, 3):
        damage(save(tmp_path, epoch))
    save(tmp_path, 4, keep=2)
    assert [int(path.name[6:]) for path in list_checkpoints(tmp_path)] == [1, 2, 3, 4]
    damage(tmp_path / "epoch_000004")
    assert load_latest(tmp_path)[0].path.name == "epoch_000001"  # type: ignore[union-attr]


def test_retention_notices_damage_done_since_the_last_save(tmp_path) -> None:
    retention = Retention(tmp_path, keep=2)
    for epoch in (1, 2, 3):
        retention.clean(save_checkpoint(tmp_path, epoch, GROUPS, state_of(epoch)))
    damage(tmp_path / "epoch_000003")
    retention.clean(save_checkpoint(tmp_path, 4, GROUPS, state_of(4)))
    assert [int(path.name[6:]) for path in list_checkpoints(tmp_path)] == [2, 3, 4]


@pytest.mark.parametrize("again", [False, True], ids=["retention", "the same epoch again"])
def test_a_kill_while_deleting_leaves_no_partial_checkpoint(tmp_path, monkeypatch, again: bool) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)

    def killed(path, *_args, **_kwargs):
        next(path.iterdir()).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, 2 if again else 3, keep=1)
    for path in list_checkpoints(tmp_path):
        load_checkpoint(path)
    save(tmp_path, 4, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["epoch_000004"]


MANIFESTS = [
    "[]",
    "{}",
    "3",
    "null",
    '"x"',
    "[" * 100_000,
    '{"a":' * 100_000,
    "9" * 5000,
    "",
    "\x00",
    '{"state.json": 1}',
]


@pytest.mark.parametrize("content", MANIFESTS, ids=range(len(MANIFESTS)))
@pytest.mark.parametrize("name", ["manifest.json", "state.json"])
def test_hostile_json_is_skipped(tmp_path, content: str, name: str) -> None:
    save(tmp_path, 1)
    newest = save(tmp_path, 2)
    (newest / name).write_text(content)
    if name == "state.json":
        seal(newest)
    loaded, problems = load_latest(tmp_path)
    assert loaded is not None
    assert loaded.path.name == "epoch_000001"
    assert len(problems) == 1


@pytest.mark.parametrize("name", ["/dev/zero", "../../secret", "pipe.safetensors", "link.safetensors", "notes.txt"])
def test_only_regular_files_of_the_checkpoint_itself_are_read(tmp_path, name: str) -> None:
    (tmp_path / "secret").write_text("secret")
    path = save(tmp_path / "checkpoints", 1)
    os.mkfifo(path / "pipe.safetensors")
    (path / "link.safetensors").symlink_to(tmp_path / "secret")
    (path / "notes.txt").touch()
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, name: "0" * 64}))
    with pytest.raises(BadCheckpointError):
        load_checkpoint(path)


def test_files_are_bounded_before_they_are_read(tmp_path) -> None:
    for name in ("manifest.json", "state.json", "weights.safetensors"):
        path = save(tmp_path, 1)
        with (path / name).open("wb") as file:
            file.truncate(2**40)  # a sparse file
        with pytest.raises(BadCheckpointError):
            load_checkpoint(path)


def test_a_file_of_100_000_empty_tensors_is_refused_before_they_are_made(tmp_path) -> None:
    path = save(tmp_path)
    header = json.dumps({f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(100_000)})
    (path / "weights.safetensors").write_bytes(len(header).to_bytes(8, "little") + header.encode())
    seal(path)
    with pytest.raises(BadCheckpointError, match=r"weights\.safetensors"):
        load_checkpoint(path)


def test_checkpoints_outside_of_the_run_are_skipped(tmp_path) -> None:
    save(tmp_path / "other" / "checkpoints", 9)
    save(tmp_path / "run" / "checkpoints", 1)
    (tmp_path / "run" / "checkpoints" / "epoch_000009").symlink_to(tmp_path / "other" / "checkpoints" / "epoch_000009")
    loaded, problems = load_latest(tmp_path / "run" / "checkpoints")
    assert loaded is not None
    assert loaded.path.name == "epoch_000001"
    assert "outside" in problems[0]


HOSTILE_SPECS = [
    {"observation": {"kind": "vector", "shape": [10**9, 10**9], "dtype": "float32"}},
    {"observation": {"kind": "vector", "shape": [4], "dtype": "O"}},
    {"observation": {"kind": "vector", "shape": "4", "dtype": "float32"}},
    {"action": {"kind": "discrete", "n": 10**4000}},
    {"action": {"kind": "box", "shape": [2], "low": ["x"], "high": []}},
    {"features": [[1]]},
    {"agents": -1},
]


@pytest.mark.parametrize("change", HOSTILE_SPECS, ids=range(len(HOSTILE_SPECS)))
def test_hostile_specs_are_refused_before_anything_is_built(tmp_path, change: dict) -> None:
    path = save(tmp_path, 1, policy_spec={**SPEC, **change})
    with pytest.raises(BadCheckpointError, match="policy_spec"):
        load_checkpoint(path)


@pytest.mark.parametrize(
    "change",
    [
        {"ranks": [None] * 20_000},
        {"recent_returns": [None] * 20_000},
        {"explosion": {"norms": [None] * 20_000, "above": 0}},
        {"sizes": {str(number): None for number in range(20_000)}},
        {"schedules": {str(number): None for number in range(20_000)}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_millions_of_wrong_values_in_a_state_are_not_described_one_by_one(tmp_path, change: dict) -> None:
    path = save(tmp_path, 1, **change)
    with pytest.raises(BadCheckpointError, match="more than 10,000 values"):
        load_checkpoint(path)


def test_an_error_of_safetensors_on_a_full_disk_is_an_os_error(tmp_path, monkeypatch) -> None:
    def full(*_args, **_kwargs):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match="No space left") as caught:
        save(tmp_path, 1)
    assert caught.value.errno == 28
