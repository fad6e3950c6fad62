"""The environment check names what is wrong and where, and lets what is right pass."""

import re
from pathlib import Path

import numpy as np
import pytest

from engram.cli.main import main
from engram.env.check import check_environment, never_allowed
from engram.env.settings import Gym, PettingZoo, Recall


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "fakes"))


def house(**kwargs):
    return Gym(id="house:House-v0", kwargs=kwargs)


@pytest.mark.parametrize(
    "settings", [house(), house(masks=False), Recall(), PettingZoo(module="skirmish"), Gym(id="CartPole-v1")]
)
def test_nothing_is_found_in_environments_that_are_right(settings):
    check = check_environment(settings, 60)
    assert (check.errors, check.warnings) == ([], [])
    assert "ated" in check.facts["episodes"]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("discrete", r"environment 0, at step 3 .*: the observation\['room'\] is -1, expected an integer from 0 to 3"),
        ("mask", r"environment 0, at step 3 .*: the action mask allows no action"),
    ],
)
def test_observations_that_a_run_cannot_store_are_errors(fault, message):
    (error,) = check_environment(house(fault=fault), 60).errors
    assert re.search(message, error), error


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("bounds", "the observation['position'] has values from"),
        ("key", "the observation has parts that its space lacks: debug"),
        ("seed", "the same seed and actions gave different observations at step 0 the second time"),
    ],
)
def test_problems_that_a_run_tolerates_are_warnings(fault, message):
    check = check_environment(house(fault=fault, masks=False), 20)
    assert check.errors == []
    assert any(message in warning for warning in check.warnings), check.warnings


def test_actions_that_masks_never_allow_are_told():
    assert check_environment(house(), 60).facts["masks"] == "every action was allowed in some step"
    masks = np.ones((3, 2, 5), bool)
    masks[..., [1, 4]] = False
    assert never_allowed(masks) == "2 of 5 actions were never allowed (entry 1, 4 of the mask)"


def test_the_command_describes_an_environment_and_fails_if_something_is_wrong(capsys):
    assert main(["check-env", "env=gym", "env.id=house:House-v0"]) == 0
    text = capsys.readouterr().out
    assert "observation 'camera': image, 9 x 8 x 3 uint8" in text
    assert "observation 'map': symbols, 5 x 5 x 2 int32 of 7, 7 values" in text
    assert "action masks: yes" in text
    assert main(["check-env", "env=gym", "env.id=house:House-v0", "env.kwargs.fault=discrete"]) == 1
    assert "problem: house:House-v0: environment 0, at step 3" in capsys.readouterr().out


def test_popgym_and_minigrid_run_without_wrappers():
    popgym = pytest.importorskip("popgym")
    pytest.importorskip("minigrid")
    import gymnasium

    names = [f"popgym:{name}" for name in gymnasium.registry if name.startswith("popgym-") and "Easy" in name]
    assert len(names) > 10
    assert popgym is not None
    for name in [*names, "minigrid:MiniGrid-MemoryS7-v0"]:
        assert check_environment(Gym(id=name), 5).errors == [], name


@pytest.mark.parametrize(("name", "same"), [("FrozenLake-v1", True), ("Blackjack-v1", False)])
def test_first_observations_of_all_episodes_are_compared(name, same):
    assert ("seeds" in check_environment(Gym(id=name)).facts) == same
