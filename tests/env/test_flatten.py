"""Observations of any space become rows, and rows become actions of any space."""

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from engram.env.flatten import batch_writer, check_observation, policy_action_space, reader, row_space, writer
from engram.settings import UserError

LEAVES = st.one_of(
    st.builds(lambda n: spaces.Box(-1.0, 1.0, (n,), np.float32), st.integers(1, 4)),
    st.builds(lambda h, w: spaces.Box(-5, 5, (h, w), np.int64), st.integers(1, 3), st.integers(1, 3)),
    st.just(spaces.Box(0, 255, (4, 4, 3), np.uint8)),
    st.just(spaces.Box(0, 255, (5, 3), np.uint8)),
    st.just(spaces.Box(0.0, 1.0, (), np.float64)),
    st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 5), st.integers(-3, 3)),
    st.builds(
        lambda nvec: spaces.MultiDiscrete(nvec, start=[2] * len(nvec)),
        st.lists(st.integers(1, 4), min_size=1, max_size=3),
    ),
    st.just(spaces.MultiDiscrete([[2, 3], [4, 1]])),
    st.just(spaces.MultiBinary((2, 2))),
)
SPACES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1).map(spaces.Dict),
    ),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None)
@given(SPACES, st.integers(0, 1000))
def test_any_space_is_flattened_as_gymnasium_flattens_it(space, seed):
    row = row_space(space, "here")
    if row.kind == "image":
        return
    space.seed(seed)
    rows = np.full((3, *row.space.shape), 7, np.float32)
    samples = [space.sample() for _ in range(3)]
    batch_writer(space, rows)(samples)
    assert row.space.shape == (spaces.flatdim(space),)
    for written, sample in zip(rows, samples, strict=True):
        np.testing.assert_array_equal(written, spaces.flatten(space, sample).astype(np.float32))
        check_observation(space, "here", sample)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int8, np.int64, np.uint8])
def test_vectors_of_any_dtype_become_float32(dtype):
    space = spaces.Box(0, 100, (3,), dtype)
    rows = np.zeros((2, 3), np.float32)
    batch_writer(space, rows)([np.array([1, 2, 3], dtype), np.array([4, 5, 6], dtype)])
    assert row_space(space, "here").space.dtype == np.float32
    assert rows.tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("shape", [(7, 7, 3), (64, 48, 3), (84, 84, 1), (2, 64, 3), (3, 3, 3)])
def test_images_of_bytes_stay_images(shape):
    image = np.arange(np.prod(shape), dtype=np.uint32).astype(np.uint8).reshape(shape)
    row, written = row_space(spaces.Box(0, 255, shape, np.uint8), "here"), np.zeros(shape, np.uint8)
    writer(spaces.Box(0, 255, shape, np.uint8), written)(image)
    assert (row.kind, row.space.shape, row.space.dtype) == ("image", shape, np.uint8)
    np.testing.assert_array_equal(written, image)


@pytest.mark.parametrize("shape", [(3, 64, 48), (4, 84, 84), (8, 84, 84), (1, 5, 6)])
def test_leading_channels_are_moved_last(shape):
    space = spaces.Box(0, 255, shape, np.uint8)
    row = row_space(space, "here")
    written, image = np.zeros(row.space.shape, np.uint8), np.random.default_rng(0).integers(0, 255, shape, np.uint8)
    writer(space, written)(image)
    np.testing.assert_array_equal(written, image.transpose(1, 2, 0))


def test_bytes_in_rows_of_three_are_not_taken_for_tokens():
    row = row_space(spaces.Box(0, 255, (20, 3), np.uint8), "here")
    assert (row.kind, row.space.shape, row.space.dtype) == ("vector", (60,), np.float32)


def test_images_of_floats_are_flattened():
    assert row_space(spaces.Box(0, 1, (8, 8, 3), np.float32), "here").kind == "vector"


@pytest.mark.parametrize(
    "space", [spaces.Text(5), spaces.Sequence(spaces.Discrete(2)), spaces.Graph(spaces.Discrete(2), None)]
)
def test_spaces_without_a_fixed_size_are_refused_by_path(space):
    with pytest.raises(
        UserError, match=r"Cave-v0: observation\['map'\]\[1\] is of type (Text|Sequence|Graph), .*wrapper"
    ):
        row_space(spaces.Dict({"map": spaces.Tuple((spaces.Discrete(2), space))}), "Cave-v0")


def test_an_observation_of_another_shape_than_its_space_is_refused():
    space = spaces.Dict({"a": spaces.Tuple((spaces.Box(0, 1, (3,)),))})
    with pytest.raises(UserError, match=r"Cave-v0\['a'\]\[0\]: an observation has shape \(1,\).*\(3,\)"):
        check_observation(space, "Cave-v0", {"a": (np.zeros(1),)})


def test_discrete_actions_start_where_the_environment_starts():
    space = spaces.Discrete(3, start=5)
    assert policy_action_space(space, "here") == spaces.Discrete(3)
    assert reader(space)(np.array([0, 2], np.int32)) == [5, 7]
    assert reader(spaces.Discrete(3))(np.array([0, 2], np.int32)) == [0, 2]


def test_multi_discrete_and_binary_actions_keep_their_shape():
    several = spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 1], [0, 0]])
    assert policy_action_space(several, "here") == spaces.MultiDiscrete([2, 3, 4, 5])
    (own,) = reader(several)(np.array([[1, 2, 3, 4]], np.int32))
    assert own.tolist() == [[2, 3], [3, 4]]
    assert several.contains(own)

    switches = spaces.MultiBinary((2, 2))
    assert policy_action_space(switches, "here") == spaces.MultiDiscrete([2, 2, 2, 2])
    (own,) = reader(switches)(np.array([[1, 0, 0, 1]], np.int32))
    assert switches.contains(own)
    assert own.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_continuous_actions_are_clipped_to_the_bounds(dtype):
    space = spaces.Box(np.array([[-1, 0]], dtype), np.array([[1, np.inf]], dtype), dtype=dtype)
    assert policy_action_space(space, "here").shape == (2,)
    first, second = reader(space)(np.array([[-7.0, -7.0], [0.25, 9.0]], np.float32))
    assert space.contains(first)
    assert (first.tolist(), second.tolist()) == ([[-1.0, 0.0]], [[0.25, 9.0]])


def test_actions_of_integer_boxes_are_rounded():
    space = spaces.Box(0, 10, (2,), np.int32)
    (own,) = reader(space)(np.array([[3.7, 40.0]], np.float32))
    assert space.contains(own)
    assert own.tolist() == [4, 10]


def test_reading_actions_keeps_no_view_of_the_buffer():
    actions = np.ones((1, 2), np.float32)
    for space in (spaces.Box(-2, 2, (2,)), spaces.MultiDiscrete([3, 3])):
        (own,) = reader(space)(actions)
        assert not np.shares_memory(own, actions)


def test_other_actions_are_refused():
    with pytest.raises(UserError, match=r"Cave-v0: actions are Dict.*expected Discrete, MultiDiscrete"):
        policy_action_space(spaces.Dict({"a": spaces.Discrete(2)}), "Cave-v0")
