"""Whole runs, small ones: what they leave behind, that they repeat, and that they resume where they stopped."""

import json
from pathlib import Path

import pytest
import torch
from support.running import BATCH, SMALL, InterruptAfter, Silent

from engram.config.load import load
from engram.config.run_directory import prepare_directory
from engram.env.registry import make_spec
from engram.settings import UserError
from engram.training import device, gradient
from engram.training.advantage import ReturnScale, normalize
from engram.training.checkpoint.files import load_latest
from engram.training.device import choose_device
from engram.training.ppo import ppo_loss
from engram.training.run import start

ENVIRONMENTS = {
    "recall": ("env=recall", "env.delay=3", "env.delay_jitter=2", "env.truncate=0.05"),
    "cartpole": ("env=gym", "env.id=CartPole-v1", "env.wrappers=[mask_velocity]", "env.max_steps=15"),
    "tmaze": ("env=tmaze", "env.max_steps=12"),
}


def run(directory: Path, *words: str, name: str = "x", epochs: int = 4, display: Silent | None = None):
    settings = load([*SMALL, *words, f"run={name}", f"runs_dir={directory}", f"trainer.total_timesteps={epochs * 96}"])
    prepare_directory(settings)
    return start(settings, display or Silent())


def metrics(directory: Path, name: str = "x") -> list[dict]:
    """The records without timings, which may differ between two equal runs."""
    lines = (directory / name / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(("time/", "process/"))} for line in lines]


def weights(directory: Path, name: str = "x") -> dict[str, torch.Tensor]:
    checkpoint, problems = load_latest(directory / name / "checkpoints")
    assert not problems
    assert checkpoint is not None
    return checkpoint.groups["weights"]


def test_a_run_leaves_settings_metrics_log_and_a_checkpoint(tmp_path) -> None:
    result = run(tmp_path, *ENVIRONMENTS["recall"])
    assert result.steps == 4 * 96
    assert result.checkpoint is not None
    assert result.checkpoint.is_dir()
    assert {p.name for p in (tmp_path / "x").iterdir()} == {
        "settings.yaml",
        "plan.json",
        "metrics.jsonl",
        "log.txt",
        "checkpoints",
    }
    records = metrics(tmp_path)
    assert [r["epoch"] for r in records] == [1, 2, 3, 4]
    assert all(r["memory/replay_error"] < 1e-5 for r in records)
    assert all(r["gradient/norm"] > 0 for r in records)


@pytest.mark.parametrize("workers", [0, 2])
def test_two_runs_with_one_seed_have_identical_metrics(tmp_path, workers: int) -> None:
    words = (*ENVIRONMENTS["recall"], f"trainer.num_workers={workers}")
    run(tmp_path, *words, name="a")
    run(tmp_path, *words, name="b")
    run(tmp_path, *words, "seed=2", name="c")
    assert metrics(tmp_path, "a") == metrics(tmp_path, "b")
    assert metrics(tmp_path, "a") != metrics(tmp_path, "c")


def test_the_allocator_is_configured_before_anything_is_built(tmp_path, monkeypatch) -> None:
    order = []
    monkeypatch.setattr("engram.training.run.keep_freed_memory", lambda: order.append("keep"))
    monkeypatch.setattr("engram.training.run.make_spec", lambda env: order.append("build") or make_spec(env))
    run(tmp_path, *ENVIRONMENTS["recall"], epochs=1)
    assert order == ["keep", "build"]


def test_a_run_learns_the_same_in_any_number_of_batches(tmp_path, monkeypatch) -> None:
    for batches in (1, 3):
        monkeypatch.setattr("engram.training.environment.number_of_batches", lambda *_, number=batches: number)
        run(tmp_path, *ENVIRONMENTS["recall"], name=f"{batches}")
    one, three = metrics(tmp_path, "1"), metrics(tmp_path, "3")
    assert len(one) == len(three)
    for name in ("return", "loss/policy", "loss/value", "loss/entropy", "memory/norm"):
        assert [record[name] for record in three] == pytest.approx([record[name] for record in one], rel=1e-3, abs=1e-5)


@pytest.mark.parametrize(("workers", "rows", "batches"), [(2, 256, 2), (2, 128, 1), (0, 256, 1)])
def test_the_number_of_batches_depends_on_the_rows(
    tmp_path, monkeypatch, workers: int, rows: int, batches: int
) -> None:
    seen = []
    monkeypatch.setattr("engram.training.run.train", lambda training, *_: seen.append(len(training.env.batches)))
    words = (f"trainer.num_workers={workers}", f"trainer.num_envs={rows}", "trainer.batch_size=null")
    run(tmp_path, *ENVIRONMENTS["recall"], *words, "trainer.minibatch_size=null")
    assert seen == [batches]


@pytest.mark.parametrize(
    ("environment", "optimizer"),
    [*((name, "adam") for name in ENVIRONMENTS), ("recall", "adamw"), ("recall", "muon")],
)
def test_a_stopped_run_resumes_exactly(tmp_path, environment: str, optimizer: str) -> None:
    words = (*ENVIRONMENTS[environment], f"trainer.optimizer.type={optimizer}")
    run(tmp_path, *words, name="whole", epochs=5)
    for epochs in (2, 3, 5):
        run(tmp_path, *words, name="pieces", epochs=epochs)
    assert metrics(tmp_path, "whole") == metrics(tmp_path, "pieces")
    for name, tensor in weights(tmp_path, "whole").items():
        assert torch.equal(tensor, weights(tmp_path, "pieces")[name]), name
    assert "resume: exact" in (tmp_path / "pieces" / "log.txt").read_text()


@pytest.mark.parametrize("damage", ["cut off", "one bit"])
def test_a_damaged_checkpoint_is_reported_and_the_previous_one_gives_the_same_result(tmp_path, damage: str) -> None:
    run(tmp_path, *ENVIRONMENTS["recall"], name="whole", epochs=5)
    run(tmp_path, *ENVIRONMENTS["recall"], epochs=3)
    newest = sorted((tmp_path / "x" / "checkpoints").iterdir())[-1] / "weights.safetensors"
    content = bytearray(newest.read_bytes())
    content[-7] ^= 1
    newest.write_bytes(content[:-7] if damage == "cut off" else content)
    display = Silent()
    run(tmp_path, *ENVIRONMENTS["recall"], epochs=5, display=display)
    assert any("weights.safetensors has changed" in message for message in display.messages)
    assert metrics(tmp_path, "whole") == metrics(tmp_path)


@pytest.mark.parametrize(
    ("interval", "epoch", "said"),
    [
        (1, 1, "stopped before the first checkpoint (trainer.checkpoint.interval is 1 epoch): the same command"),
        (3, 2, "stopped before the first checkpoint (trainer.checkpoint.interval is 3 epochs): the same command"),
        (3, 4, "stopped; 1 epoch since the last checkpoint is lost (trainer.checkpoint.interval): run"),
        (
            3,
            5,
            "stopped; 2 epochs since the last checkpoint are lost (trainer.checkpoint.interval): run",
        ),
    ],
)
def test_an_interrupted_run_reports_what_is_lost(tmp_path, interval: int, epoch: int, said: str) -> None:
    words = (*ENVIRONMENTS["recall"], f"trainer.checkpoint.interval={interval}")
    with pytest.raises(KeyboardInterrupt) as caught:
        run(tmp_path, *words, epochs=7, display=InterruptAfter(epoch))
    assert str(caught.value).startswith(said)
    assert str(caught.value).endswith("starts from the beginning" if epoch < 3 else "to resume from epoch 3")
    run(tmp_path, *words, epochs=7)
    assert [record["epoch"] for record in metrics(tmp_path)] == [1, 2, 3, 4, 5, 6, 7]


def test_a_run_interrupted_after_a_checkpoint_loses_nothing(tmp_path, monkeypatch) -> None:
    def interrupt(*_) -> None:
        raise KeyboardInterrupt

    run(tmp_path, *ENVIRONMENTS["recall"], epochs=2)
    monkeypatch.setattr("engram.training.rollout.Rollout.collect", interrupt)
    with pytest.raises(KeyboardInterrupt, match=r"^stopped; run the same command again to resume from epoch 2$"):
        run(tmp_path, *ENVIRONMENTS["recall"], epochs=3)


def test_a_run_interrupted_while_saving_does_not_count_that_checkpoint(tmp_path, monkeypatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    run(tmp_path, *ENVIRONMENTS["recall"], epochs=2)
    monkeypatch.setattr("engram.training.checkpoint.checkpoints.save_checkpoint", interrupt)
    with pytest.raises(KeyboardInterrupt, match=r"^stopped; 1 epoch since the last .* from epoch 2$"):
        run(tmp_path, *ENVIRONMENTS["recall"], epochs=3)


@pytest.mark.parametrize("best", ["whole", "damaged"])
def test_a_run_with_only_damaged_checkpoints_is_not_overwritten(tmp_path, best: str) -> None:
    run(tmp_path, *ENVIRONMENTS["recall"], epochs=3)
    where, display = tmp_path / "x" / "checkpoints", Silent()
    for path in [*where.glob("epoch_*"), *([where / "best"] if best == "damaged" else [])]:
        (path / "weights.safetensors").write_bytes(b"nothing")
    before = (tmp_path / "x" / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError) as caught:
        run(tmp_path, *ENVIRONMENTS["recall"], epochs=5, display=display)
    rescue = f"start from the best one with init_from={where}/best run=OTHER, or "
    newest, oldest = (f"{where}/epoch_00000{n}/weights.safetensors has changed since it was written" for n in (3, 1))
    assert str(caught.value) == (
        f"none of the checkpoints in {where} is readable ({newest}; … {oldest}): "
        f"{rescue if best == 'whole' else ''}remove them to start from the beginning"
    )
    assert (tmp_path / "x" / "metrics.jsonl").read_bytes() == before
    assert not display.messages
    if best == "whole":
        assert run(tmp_path, *ENVIRONMENTS["recall"], f"init_from={where}/best", name="other", epochs=1).checkpoint


@pytest.mark.parametrize("memory", ["carry", "reset", "off"])
@pytest.mark.parametrize("horizon", [1, 8])
def test_replay_is_exact_in_every_memory_mode(tmp_path, memory: str, horizon: int) -> None:
    words = (*ENVIRONMENTS["recall"], f"trainer.memory={memory}", f"trainer.bptt_horizon={horizon}")
    run(tmp_path, *words)
    assert all(r["memory/replay_error"] < 1e-5 for r in metrics(tmp_path))


def test_a_policy_that_replays_from_the_wrong_memory_is_stopped(tmp_path, monkeypatch) -> None:
    right = gradient.replay
    monkeypatch.setattr(gradient, "replay", lambda agent, m: right(agent, m._replace(memory=m.memory + 1)))
    with pytest.raises(UserError, match="has different memory in learning than in acting"):
        run(tmp_path, *ENVIRONMENTS["recall"])


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path, monkeypatch) -> None:
    right = gradient.ppo_loss

    def breaks_later(**arguments):
        losses = right(**arguments)
        broken = (tmp_path / "x" / "checkpoints" / "epoch_000002").exists()
        return losses._replace(total=losses.total * float("nan")) if broken else losses

    monkeypatch.setattr(gradient, "ppo_loss", breaks_later)
    with pytest.raises(UserError, match=r"epoch 3: the loss \(total\) is nan: all numbers .* are finite"):
        run(tmp_path, *ENVIRONMENTS["recall"])
    assert all(tensor.isfinite().all() for tensor in weights(tmp_path).values())


def test_a_missing_device_is_a_user_error() -> None:
    assert choose_device("auto").type in ("cpu", "cuda", "mps")
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="device=cuda"):
            choose_device("cuda")


def test_bfloat16_on_a_cpu_that_would_crash_is_refused_with_the_fix(monkeypatch, tmp_path) -> None:
    flags = tmp_path / "cpuinfo"
    flags.write_text("flags : avx512f amx_tile")
    monkeypatch.setattr(device, "CPU_FLAGS", flags)
    monkeypatch.setattr(device, "BFLOAT16_PRODUCT", "import os; os.kill(os.getpid(), 4)")
    with pytest.raises(UserError, match=r"signal 4.*ONEDNN_MAX_CPU_ISA"):
        device.require_precision("bfloat16", torch.device("cpu"))
    device.require_precision("float32", torch.device("cpu"))
    flags.write_text("flags : avx512f")
    device.require_precision("bfloat16", torch.device("cpu"))


def test_values_are_learned_in_units_of_the_returns_unless_switched_off(tmp_path, monkeypatch) -> None:
    used: list[tuple[float, float]] = []

    def recording(**arguments):
        used.append((float(arguments["value_unit"]), arguments["returns"].std(correction=0).item()))
        return ppo_loss(**arguments)

    monkeypatch.setattr("engram.training.gradient.ppo_loss", recording)
    words = (f"trainer.minibatch_size={BATCH}", "trainer.update_epochs=1")
    run(tmp_path, *ENVIRONMENTS["recall"], *words, name="on", epochs=1)
    unit, spread = used[0]
    assert unit == pytest.approx(spread, rel=0.2)  # of returns before the values were moved to their mean
    used.clear()
    run(tmp_path, *ENVIRONMENTS["recall"], *words, "trainer.ppo.norm_returns=false", name="off")
    assert {unit for unit, _ in used} == {1.0}


def test_the_floor_of_advantages_is_in_units_of_the_largest_spread_of_returns(tmp_path, monkeypatch) -> None:
    floors: list[float] = []

    def recording(advantages, mask, world, minimum):
        floors.append(float(minimum))
        return normalize(advantages, mask, world, minimum)

    monkeypatch.setattr("engram.training.advantage.normalize", recording)
    monkeypatch.setattr("engram.training.loop.return_scale", lambda *_: ReturnScale(largest_std=3.0))
    run(tmp_path, *ENVIRONMENTS["recall"], "trainer.ppo.adv_floor=0.5", epochs=1)
    assert floors[-1] == 1.5


def test_the_statistics_of_observations_follow_the_first_half_of_a_run(tmp_path) -> None:
    run(tmp_path, *ENVIRONMENTS["recall"], "trainer.norm_obs=true", epochs=4)
    counts = [count.item() for name, count in weights(tmp_path).items() if name.endswith("encoder.reader.count")]
    assert counts == [2 * 96]
