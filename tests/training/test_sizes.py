"""Sizes that divide each other, and what is said about those that do not."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import running

from engram.settings import SettingsError, UserError
from engram.training.checkpoint.files import Checkpoint, load_latest
from engram.training.settings import Trainer
from engram.training.sizes import AUTOMATIC, KEPT, Sizes, of_one_rank, resolve_sizes, sizes_of_run, steps_played


def resolve(agents: int = 1, device: str = "cpu", cores: int = 2, **given) -> Sizes:
    return resolve_sizes(Trainer(**{"bptt_horizon": 64, **given}), agents, device, cores)


def problems(agents: int = 1, **given) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        resolve(agents, **given)
    return caught.value.lines


given_sizes = st.fixed_dictionaries(
    {"bptt_horizon": st.integers(1, 80)},
    optional={
        "num_envs": st.integers(1, 100),
        "num_workers": st.integers(0, 8),
        "batch_size": st.integers(1, 20_000),
        "minibatch_size": st.integers(1, 5_000),
    },
)
machines = st.tuples(st.integers(1, 30), st.sampled_from(["cpu", "auto", "cuda"]), st.integers(1, 32))


@settings(deadline=None)
@given(given_sizes, machines)
def test_resolved_sizes_divide_and_keep_what_was_given(given, machine):
    try:
        sizes = resolve(*machine, **given)
    except SettingsError:
        return
    agents, _, _ = machine
    assert sizes.rows == sizes.num_envs * agents
    assert sizes.batch_size == sizes.segments * sizes.horizon
    assert sizes.segments % sizes.rows == 0
    assert sizes.minibatch_size % sizes.horizon == 0
    assert sizes.batch_size % sizes.minibatch_size == 0
    assert sizes.num_workers <= sizes.num_envs
    assert all(getattr(sizes, name.replace("bptt_", "")) == value for name, value in given.items())


@settings(deadline=None)
@given(given_sizes, machines)
def test_a_suggested_size_is_one_that_works(given, machine):
    try:
        resolve(*machine, **given)
    except SettingsError as error:
        said = error.lines
        if len(said) > 1:
            return  # of several wrong sizes each suggestion takes the others as they are
        name = said[0].partition(":")[0].removeprefix("trainer.")
        for size in re.findall(r"\d+", said[0].rpartition("try")[2]):
            assert resolve(*machine, **{**given, name: int(size)})


def test_default_sizes_fit_the_machine():
    assert resolve() == Sizes(64, 64, 64, 64, 4096, 512, 0, 4)
    assert resolve(cores=1) == Sizes(64, 64, 64, 64, 4096, 512, 0, 4)
    assert resolve(agents=24) == Sizes(2, 48, 64, 48, 3072, 384, 0, 4)
    assert [resolve(cores=cores, num_envs=64).num_workers for cores in (3, 4, 8, 64, 128)] == [1, 2, 4, 32, 32]
    assert resolve(device="cuda", cores=2).num_workers == 2
    assert resolve(device="cuda", cores=16, total_timesteps=10**7) == Sizes(4096, 4096, 64, 8192, 524288, 16384, 16, 1)


def test_short_runs_have_small_batches_and_more_passes():
    sizes = [resolve(total_timesteps=steps) for steps in (2_000, 5_000, 100_000, 1_000_000, 5_000_000)]
    assert [each.batch_size for each in sizes] == [512, 512, 2048, 4096, 8192]
    assert {each.update_epochs for each in sizes} == {4}
    assert resolve(total_timesteps=5_000_000, cores=16).batch_size == 65536


def test_short_segments_do_not_make_small_batches():
    assert resolve(bptt_horizon=8).batch_size == 4096


def test_the_number_of_workers_does_not_change_what_is_learned():
    sizes = [
        resolve(agents, num_workers=workers)._replace(num_workers=0) for agents in (1, 24) for workers in (0, 1, 2)
    ]
    assert len(set(sizes)) == 2


def test_the_number_of_environments_follows_from_a_given_batch_size():
    assert resolve(batch_size=8192)[:5] == (64, 64, 64, 128, 8192)
    assert resolve(batch_size=640).num_envs == 10


def test_every_worker_has_an_environment():
    assert resolve(agents=24, num_workers=7).num_envs >= 7


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"minibatch_size": 1000},
            "minibatch_size: 1000 is not a multiple of trainer.bptt_horizon (64): try 960 or 1024",
        ),
        (
            {"minibatch_size": 1000, "batch_size": 4096},
            "minibatch_size: 1000 is not a multiple of trainer.bptt_horizon (64): try 512 or 1024",
        ),
        (
            {"minibatch_size": 8192, "batch_size": 4096},
            "minibatch_size: 8192 does not divide trainer.batch_size (4096): try 4096",
        ),
        ({"batch_size": 1000}, "batch_size: 1000 is not a multiple of 64 (trainer.bptt_horizon 64): try 960 or 1024"),
        (
            {"batch_size": 1000, "num_envs": 2, "agents": 3},
            "batch_size: 1000 is not a multiple of 384 (trainer.num_envs 2 x 3 agents x trainer.bptt_horizon 64): "
            "try 768 or 1152",
        ),
        (
            {"batch_size": 65, "num_workers": 4},
            "batch_size: 65 is not a multiple of 64 (trainer.bptt_horizon 64): try 256",
        ),
        (
            {"num_workers": 4, "num_envs": 2},
            "num_workers: 4 workers cannot share 2 environments (trainer.num_envs): try 2",
        ),
    ],
)
def test_sizes_that_do_not_divide_name_sizes_that_do(given, said):
    assert problems(**given) == [f"trainer.{said}"]


def test_sizes_can_be_divided_among_ranks() -> None:
    trainer = Trainer(num_envs=12, batch_size=768, scale_batches_by_world_size=True)
    each = of_one_rank(trainer, 3)
    assert (each.num_envs, each.batch_size, each.minibatch_size) == (4, 256, None)
    assert of_one_rank(trainer.model_copy(update={"scale_batches_by_world_size": False}), 3).num_envs == 12


def test_sizes_that_ranks_do_not_divide_raise_with_the_nearest_that_they_do() -> None:
    trainer = Trainer(num_envs=10, batch_size=770, scale_batches_by_world_size=True)
    with pytest.raises(SettingsError) as error:
        of_one_rank(trainer, 4)
    assert [line.partition(" cannot")[0] for line in error.value.lines] == [
        "trainer.num_envs: 10",
        "trainer.batch_size: 770",
    ]
    assert error.value.lines[0].endswith("try 8 or 12")


@pytest.mark.parametrize("cores", [1, 2, 8, 64])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("total", [64, 100, 600, 1024, 3000, 5000, 20_000])
def test_a_short_run_is_short_on_every_machine(total, device, cores):
    sizes = resolve(device=device, cores=cores, total_timesteps=total)
    assert steps_played(total, sizes.batch_size) <= max(1.25 * total, 64 * -(-total // 64))


def test_many_agents_play_one_segment_each_at_least():
    assert resolve(agents=24, total_timesteps=1024).batch_size == 24 * 64


# A run keeps its sizes, also where another machine would choose others.

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


@pytest.mark.parametrize("name", [*KEPT])
def test_a_checkpoint_without_one_of_the_sizes_is_refused(tmp_path, name) -> None:
    damaged = stored(tmp_path, cores=2)
    del damaged.state["sizes"][name]
    with pytest.raises(UserError, match=rf"lacks the sizes {name}: remove it"):
        sizes_with(2, damaged)


def test_every_automatic_size_is_kept_on_resume() -> None:
    left_open = {name for name, field in Trainer.model_fields.items() if field.default is None} & {*Sizes._fields}
    assert {*AUTOMATIC} == left_open - {"num_workers"}


def test_a_different_number_of_ranks_may_change_the_sizes(tmp_path) -> None:
    began = stored(tmp_path, cores=2)
    trainer = Trainer(num_workers=0, num_envs=8, scale_batches_by_world_size=True)
    assert sizes_of_run(trainer, began, 1, "cpu", 16, ranks=2).num_envs == 4
