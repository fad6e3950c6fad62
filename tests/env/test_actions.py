"""Actions of any space have a flat form for the policy, and a way back."""

from enum import IntEnum
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces

from engram.env.actions import action_converter, action_names, encode_action, policy_action_space
from engram.settings import UserError


def test_discrete_actions_start_where_the_environment_starts():
    space = spaces.Discrete(3, start=5)
    assert policy_action_space(space, "here") == spaces.Discrete(3)
    assert action_converter(space)(np.array([0, 2], np.int32)) == [5, 7]
    assert action_converter(spaces.Discrete(3))(np.array([0, 2], np.int32)) == [0, 2]


def test_multi_discrete_and_binary_actions_keep_their_shape():
    several = spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 1], [0, 0]])
    assert policy_action_space(several, "here") == spaces.MultiDiscrete([2, 3, 4, 5])
    (own,) = action_converter(several)(np.array([[1, 2, 3, 4]], np.int32))
    assert own.tolist() == [[2, 3], [3, 4]]
    assert several.contains(own)

    switches = spaces.MultiBinary((2, 2))
    assert policy_action_space(switches, "here") == spaces.MultiDiscrete([2, 2, 2, 2])
    (own,) = action_converter(switches)(np.array([[1, 0, 0, 1]], np.int32))
    assert switches.contains(own)
    assert own.tolist() == [[1, 0], [0, 1]]


def test_a_joint_choice_is_one_of_all_combinations():
    board = spaces.MultiDiscrete([2, 3], start=[1, 0])
    assert policy_action_space(board, "here", joint=True) == spaces.Discrete(6)
    assert [own.tolist() for own in action_converter(board)(np.array([0, 4, 5], np.int32))] == [[1, 0], [2, 1], [2, 2]]
    large = spaces.MultiDiscrete([17, 16])
    assert policy_action_space(large, "here", joint=True) == large


def test_the_previous_action_of_a_joint_choice_is_one_of_all_combinations():
    board = spaces.MultiDiscrete([2, 3], start=[1, 0])
    for action in range(6):
        (own,) = action_converter(board)(np.array([action], np.int32))
        assert encode_action(board, own, 6).tolist() == np.eye(6)[action].tolist()
    assert encode_action(board, np.array([2, 1]), 5).tolist() == [0, 1, 0, 1, 0]
    assert encode_action(spaces.Discrete(3, start=5), 6, 3).tolist() == [0, 1, 0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_continuous_actions_are_clipped_to_the_bounds(dtype):
    space = spaces.Box(np.array([[-1, 0]], dtype), np.array([[1, np.inf]], dtype), dtype=dtype)
    assert policy_action_space(space, "here").shape == (2,)
    first, second = action_converter(space)(np.array([[-7.0, -7.0], [0.25, 9.0]], np.float32))
    assert space.contains(first)
    assert (first.tolist(), second.tolist()) == ([[-1.0, 0.0]], [[0.25, 9.0]])


def test_actions_of_integer_boxes_are_rounded():
    space = spaces.Box(0, 10, (2,), np.int32)
    (own,) = action_converter(space)(np.array([[3.7, 40.0]], np.float32))
    assert space.contains(own)
    assert own.tolist() == [4, 10]


def test_reading_actions_keeps_no_view_of_the_buffer():
    actions = np.ones((1, 2), np.float32)
    for space in (spaces.Box(-2, 2, (2,)), spaces.MultiDiscrete([3, 3])):
        (own,) = action_converter(space)(actions)
        assert not np.shares_memory(own, actions)


def test_other_actions_are_refused():
    with pytest.raises(UserError, match=r"Cave-v0: actions are Dict.*expected Discrete, MultiDiscrete"):
        policy_action_space(spaces.Dict({"a": spaces.Discrete(2)}), "Cave-v0")


@pytest.mark.parametrize(
    ("attributes", "names"),
    [
        ({"action_names": ["walk", "turn"]}, ("walk", "turn")),
        ({"get_action_meanings": lambda: ["NOOP", "FIRE"]}, ("NOOP", "FIRE")),
        ({"actions": IntEnum("Actions", ["left", "right"])}, ("left", "right")),
        ({"action_names": ["only one"]}, ()),
        ({"actions": np.zeros(2)}, ()),
        ({}, ()),
    ],
)
def test_actions_have_the_names_that_an_environment_gives_them(attributes, names):
    env = SimpleNamespace(unwrapped=SimpleNamespace(**attributes))
    assert action_names(env, spaces.Discrete(2)) == names
    assert action_names(env, spaces.Box(-1, 1, (2,))) == ()
