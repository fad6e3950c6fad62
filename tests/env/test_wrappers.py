"""Wrappers are found by name, and mask_velocity masks the velocities."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from engram.config.load import load
from engram.env.registry import make_spec
from engram.env.settings import Gym
from engram.env.wrappers import wrap
from engram.settings import UserError

VELOCITIES = {
    "CartPole-v1": [1, 3],
    "Pendulum-v1": [2],
    "MountainCar-v0": [1],
    "MountainCarContinuous-v0": [1],
    "Acrobot-v1": [4, 5],
}


@pytest.mark.parametrize(("name", "places"), VELOCITIES.items())
def test_masking_zeroes_the_velocities_and_nothing_else(name, places):
    plain, masked = gymnasium.make(name), wrap(gymnasium.make(name), ["mask_velocity"])
    seen, hidden = plain.reset(seed=3)[0], masked.reset(seed=3)[0]
    plain.action_space.seed(0)
    for _ in range(20):
        kept = np.delete(seen, places)
        np.testing.assert_array_equal(np.delete(hidden, places), kept)
        assert not hidden[places].any()
        assert hidden.dtype == seen.dtype
        action = plain.action_space.sample()
        seen, hidden = plain.step(action)[0], masked.step(action)[0]
    assert seen[places].all()


def test_masking_an_environment_without_known_velocities_names_those_that_are_known():
    with pytest.raises(UserError, match=r"velocities of FrozenLake.*Acrobot, CartPole.*package\.module:Class"):
        wrap(gymnasium.make("FrozenLake-v1"), ["mask_velocity"])


def test_masking_after_a_wrapper_that_changed_the_observation_is_refused():
    with pytest.raises(UserError, match=r"expects 4 numbers from CartPole.*put it before"):
        wrap(gymnasium.make("CartPole-v1"), ["TimeAwareObservation", "mask_velocity"])


@pytest.mark.parametrize(
    "wrapper", [{"frame_stack": 10**9}, {"resize": [10**6, 10**6]}, {"frame_stack": {"stack_size": 10**9}}]
)
def test_sizes_that_no_memory_holds_are_refused_at_once(wrapper):
    with pytest.raises(UserError, match="is too large: at most 10000"):
        wrap(gymnasium.make("CartPole-v1"), [wrapper])


def test_wrappers_are_applied_innermost_first():
    env = wrap(gymnasium.make("CartPole-v1"), ["mask_velocity", "TimeAwareObservation"])
    observation, _ = env.reset(seed=1)
    assert observation.shape == (5,)
    assert not observation[[1, 3]].any()


def test_gymnasiums_wrappers_are_found_by_name():
    rescaled = wrap(gymnasium.make("Pendulum-v1"), ["RescaleAction", "ClipReward"])
    assert rescaled.action_space == spaces.Box(-1, 1, (1,))
    rescaled.reset(seed=0)
    assert rescaled.step(np.ones(1, np.float32))[1] >= -1
    assert wrap(gymnasium.make("FrozenLake-v1"), ["FlattenObservation"]).observation_space.shape == (16,)


def test_a_users_wrapper_is_named_by_module_and_class():
    env = wrap(gymnasium.make("FrozenLake-v1"), ["gymnasium.wrappers.transform_observation:FlattenObservation"])
    assert isinstance(env, gymnasium.wrappers.FlattenObservation)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mask_velocty", "unknown wrapper mask_velocty; did you mean mask_velocity?"),
        ("qqqqqqqqqqqqqqq", "expected one of mask_velocity, frame_stack"),
        ("no_such_package:Thing", "no_such_package could not be imported: ModuleNotFoundError: No module named"),
        ("gymnasium.wrappers:Thing", "expected a subclass of gymnasium.Wrapper in gymnasium.wrappers, got nothing"),
        ("os:system", "expected a subclass of gymnasium.Wrapper in os, got <built-in function system>"),
        ("subprocess:Popen", "expected a subclass of gymnasium.Wrapper in subprocess, got <class"),
        (
            "gymnasium.wrappers:TimeLimit",
            r"gymnasium.wrappers:TimeLimit\(env\) does not fit around .*max_episode_steps",
        ),
        ("RescaleAction", r"RescaleAction\(env\) does not fit around"),
    ],
)
def test_wrappers_that_fail_are_explained(name, message):
    with pytest.raises(UserError, match=f"env.wrappers: .*{message}"):
        wrap(gymnasium.make("CartPole-v1"), [name])


@pytest.mark.parametrize(
    ("wrappers", "shape"),
    [
        ([{"frame_stack": 4}], (4, 4)),
        ([{"frame_stack": {"stack_size": 2, "padding_type": "zero"}}], (2, 4)),
        ([{"gymnasium.wrappers:FrameStackObservation": {"stack_size": 3}}], (3, 4)),
        (["mask_velocity", {"frame_stack": 2}, {"FlattenObservation": {}}], (8,)),
    ],
)
def test_wrappers_take_arguments(wrappers, shape):
    settings = load(["env=gym", f"env.wrappers={wrappers}"]).env
    assert wrap(gymnasium.make("CartPole-v1"), settings.wrappers).observation_space.shape == shape


@pytest.mark.parametrize(
    ("wrapper", "message"),
    [
        ({"frame_stack": {"size": 4}}, r"frame_stack\(env, size=4\) does not fit around .*unexpected keyword argument"),
        ({"frame_stack": 0}, r"frame_stack\(env, 0\) does not fit around"),
        ({"a": 1, "b": 2}, r"expected one name with its arguments, .*got"),
        ({"frame_stac": 4}, r"unknown wrapper frame_stac; did you mean frame_stack"),
    ],
)
def test_wrong_arguments_are_explained(wrapper, message):
    with pytest.raises(UserError, match=f"env.wrappers: .*{message}"):
        wrap(gymnasium.make("CartPole-v1"), [wrapper])


@pytest.mark.parametrize(
    ("name", "shown"),
    [("NoisyPositionOnlyCartPoleEasy", True), ("CountRecallEasy", True), ("PositionOnlyPendulumEasy", False)],
)
def test_popgym_shows_the_previous_action_unless_actions_are_continuous(name, shown):
    pytest.importorskip("popgym")
    spec = make_spec(Gym(id=f"popgym:popgym-{name}-v0"))
    assert [part.name for part in spec.parts] == (["observation", "previous_action"] if shown else [])
