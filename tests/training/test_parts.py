"""Runs with observations in parts, masks, previous action and reward, and an asymmetric critic are exact."""

from pathlib import Path

import pytest
from support.running import metrics, run

HOUSE = (
    "env=gym",
    "env.id=house:House-v0",
    "py_agent.previous=[action,reward]",
    "py_agent.critic_only=[camera,position]",
    "py_agent.critic_memory=true",
    "trainer.norm_obs=false",  # its schedule depends on the length of the run
)


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "env" / "fakes"))


@pytest.fixture(scope="module")
def four_epochs(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1] / "env" / "fakes"))
        directory = tmp_path_factory.mktemp("runs")
        run(directory, *HOUSE, epochs=4)
    return metrics(directory)


def test_the_replay_error_is_zero_in_every_epoch(four_epochs):
    assert [record["memory/replay_error"] for record in four_epochs] == pytest.approx([0] * 4, abs=1e-5)
    assert [record["memory/replay_error_value"] for record in four_epochs] == pytest.approx([0] * 4, abs=1e-5)


def test_a_run_resumes_exactly(tmp_path, four_epochs):
    run(tmp_path, *HOUSE, epochs=2)
    run(tmp_path, *HOUSE, epochs=4)
    assert metrics(tmp_path) == four_epochs


def test_workers_change_nothing(tmp_path, four_epochs):
    run(tmp_path, *HOUSE, "trainer.num_workers=2", epochs=4)
    assert metrics(tmp_path) == four_epochs


def test_statistics_of_observations_are_kept_for_each_vector_and_for_symbols(tmp_path):
    from engram.training.checkpoint.files import load_checkpoint

    result = run(tmp_path, "env=gym", "env.id=house:House-v0", "trainer.norm_obs=true", epochs=2)
    weights = load_checkpoint(result.checkpoint).groups["weights"]
    means = {name: tensor for name, tensor in weights.items() if name.endswith(".mean") and "value" not in name}
    sizes = sorted(tensor.shape[0] for tensor in means.values())
    assert sizes == [3, 4, 64, 350]  # position, room, the words of the task, and 5 x 5 x 2 cells of 7 symbols
    assert all(tensor.abs().sum() > 0 for tensor in means.values())
