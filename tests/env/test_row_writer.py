"""Observations of any space become rows, part by part; what does not fit is refused."""

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from engram.env.parts import describe_parts
from engram.env.row_writer import MisfitError, RowWriter
from engram.env.spec import EnvSpec
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
    st.just(spaces.Box(0, 1, (9, 8, 3), np.float64)),
    st.just(spaces.Box(0, 255, (2, 6, 5, 3), np.uint8)),
    st.just(spaces.Box(0, 5, (4, 3), np.int64)),
    st.just(spaces.Text(12)),
)
SPACES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1).map(spaces.Dict),
    ),
    max_leaves=5,
)


def brightest(space):
    """An observation of the largest values."""
    if isinstance(space, spaces.Dict):
        return {name: brightest(part) for name, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(brightest, space))
    return space.high if isinstance(space, spaces.Box) else space.sample()


def spec_of(space, symbols=None, action=None):
    parts = describe_parts(space, "Cave-v0", symbols, lambda: [brightest(space)])
    return EnvSpec.of_parts("Cave-v0", parts, action or spaces.Discrete(3))


def written(space, observations, infos=None, spec=None):
    """The parts of the rows after these observations were written."""
    spec = spec or spec_of(space)
    shape, dtype = spec.row
    rows = np.full((len(observations), *shape), 7, dtype)
    RowWriter(space, spec, rows).write_all(observations, infos or [{}] * len(observations))
    return {"": rows} if spec.packing is None else spec.packing.views(rows)


@settings(max_examples=150, deadline=None)
@given(SPACES, st.integers(0, 1000))
def test_every_leaf_of_any_space_arrives_with_its_values(space, seed):
    space.seed(seed)
    samples = [space.sample() for _ in range(3)]
    spec = spec_of(space)
    parts = written(space, samples)
    assert EnvSpec.from_json(spec.to_json()).to_json() == spec.to_json()
    for part in spec.all_parts:
        assert parts[part.name].shape == (3, *part.shape)
        assert parts[part.name].dtype == part.dtype
    if isinstance(space, spaces.Dict) and isinstance(next(iter(space.spaces.values())), spaces.Discrete):
        name, leaf = next(iter(space.spaces.items()))
        assert parts[name].tolist() == [int(sample[name]) - int(leaf.start) for sample in samples]


@pytest.mark.parametrize("space", [spaces.Discrete(4, start=-2), spaces.MultiDiscrete([2, 3], start=[1, 0])])
def test_a_discrete_observation_alone_is_a_one_hot_vector(space):
    space.seed(0)
    samples = [space.sample() for _ in range(3)]
    rows = written(space, samples)[""]
    for row, sample in zip(rows, samples, strict=True):
        np.testing.assert_array_equal(row, spaces.flatten(space, sample).astype(np.float32))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int8, np.int64, np.uint8])
def test_vectors_of_any_dtype_become_float32(dtype):
    rows = written(spaces.Box(0, 100, (3,), dtype), [np.array([1, 2, 3], dtype), np.array([4, 5, 6], dtype)])[""]
    assert rows.dtype == np.float32
    assert rows.tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    ("shape", "stored"),
    [((64, 48, 3), (64, 48, 3)), ((84, 84, 1), (84, 84, 1)), ((2, 64, 3), (2, 64, 3)), ((3, 64, 48), (64, 48, 3)),
     ((8, 84, 84), (84, 84, 8)), ((20, 16), (20, 16, 1)), ((4, 20, 16, 3), (20, 16, 12))],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_images_keep_their_values_with_channels_last(shape, stored, dtype):
    space = spaces.Box(0, 255, shape, dtype)
    if dtype == np.float32 and len(shape) == 2:
        return
    image = np.arange(np.prod(shape)).reshape(shape).astype(np.uint8).astype(dtype)
    spec, rows = spec_of(space), written(space, [image])[""]
    assert (spec.observation_kind, rows.shape, rows.dtype) == ("image", (1, *stored), dtype)
    moved = image.transpose(1, 2, 0, 3).reshape(stored) if len(shape) == 4 else image
    moved = image.transpose(1, 2, 0) if len(shape) == 3 and stored != shape else moved
    np.testing.assert_array_equal(rows[0], moved.reshape(stored))


def test_bytes_in_rows_of_three_are_not_taken_for_tokens():
    spec = spec_of(spaces.Box(0, 255, (20, 3), np.uint8))
    assert (spec.observation_kind, spec.row) == ("vector", ((60,), np.float32))


def test_a_small_grid_of_bytes_holds_symbols_if_no_large_value_is_seen():
    grid = spaces.Box(0, 255, (7, 7, 3), np.uint8)
    seen = lambda largest: describe_parts(grid, "here", None, lambda: [np.full(grid.shape, largest)])  # noqa: E731
    assert (seen(10)[0].kind, seen(10)[0].symbols) == ("symbols", (16, 16, 16))
    assert seen(16)[0].kind == "image"
    assert spec_of(grid, symbols=11).symbols == (11, 11, 11)
    assert spec_of(grid, symbols=False).observation_kind == "image"
    assert spec_of(spaces.Box(0, 255, (64, 64, 3), np.uint8), symbols=11).observation_kind == "image"


def test_an_integer_grid_with_few_values_holds_symbols():
    spec = spec_of(spaces.Box(0, 5, (4, 3), np.int64))
    assert (spec.observation_kind, spec.row, spec.symbols) == ("symbols", ((4, 3, 1), np.int32), (6,))


@pytest.mark.parametrize("space", [spaces.Sequence(spaces.Discrete(2)), spaces.Graph(spaces.Discrete(2), None)])
def test_spaces_without_a_fixed_size_are_refused_by_path(space):
    with pytest.raises(UserError, match=r"Cave-v0: observation\['map'\]\[1\] is of type (Sequence|Graph), .*wrapper"):
        spec_of(spaces.Dict({"map": spaces.Tuple((spaces.Discrete(2), space))}))


IMAGE = spaces.Box(0, 255, (40, 40, 3), np.uint8)
GRID = spaces.Box(0, 255, (5, 5, 1), np.uint8)


@pytest.mark.parametrize(
    ("space", "bad", "message"),
    [
        (spaces.Box(0, 1, (4,)), np.zeros(5), r"the observation has shape \(5,\), expected \(4,\)"),
        (spaces.Box(0, 1, (4,)), np.array(["a"] * 4), r"the observation has dtype <U1"),
        (spaces.Box(0, 1, (4,)), None, r"the observation is None, expected an array of shape \(4,\)"),
        (IMAGE, np.full((40, 40, 3), 300.0), r"dtype float64, expected uint8"),
        (IMAGE, np.full((40, 40, 3), 300), r"values from 300 to 300"),
        (GRID, np.full((5, 5, 1), 16, np.uint8), r"symbol 16, expected 0 to 15 .*env.symbols"),
        (spaces.Discrete(3), -1, r"the observation is -1, expected an integer from 0 to 2"),
        (spaces.Discrete(3), 1.5, r"the observation is 1.5, expected an integer"),
        (spaces.MultiDiscrete([2, 3]), np.array([0, -1]), r"the value -1 at 1, expected 0 to 2"),
        (spaces.Dict({"a": spaces.Discrete(3)}), {"a": 3}, r"\['a'\] is 3, expected an integer from 0 to 2"),
        (spaces.Dict({"a": spaces.Discrete(3)}), {"b": 0}, r"\['a'\] is missing: got the keys b"),
        (spaces.Tuple([spaces.Discrete(3)]), (), r"\[0\] is missing"),
        (spaces.Dict({"a": spaces.Tuple([spaces.Discrete(3)])}), {"a": ()}, r"\['a'\]\[0\] is missing: got \(\)"),
        (spaces.Dict({"a": spaces.Box(0, 1, (2,))}), {"a": np.zeros(1)}, r"\['a'\] has shape \(1,\)"),
        (spaces.Dict({"a": spaces.Text(5)}), {"a": 5}, r"\['a'\] is 5, expected a text"),
    ],
)
def test_values_that_do_not_fit_their_space_are_refused_and_named(space, bad, message):
    good, spec = np.zeros_like(bad) if space is GRID else space.sample(), spec_of(space, symbols=16)
    shape, dtype = spec.row
    rows = np.zeros((2, *shape), dtype)
    with pytest.raises(MisfitError, match=message) as refused:
        RowWriter(space, spec, rows).write_all([good, bad], [{}, {}])
    assert refused.value.row == 1


def test_wrong_shapes_never_reach_a_neighbours_row():
    space = spaces.Box(0, 1, (4,))
    with pytest.raises(MisfitError):
        written(space, [np.zeros(3, np.float32), np.zeros(5, np.float32)])


MASKED = spaces.Dict({"action_mask": spaces.MultiBinary(5), "seen": spaces.Box(0, 1, (2,))})


@pytest.mark.parametrize(
    "mask", [np.array([1, 0, 1, 0, 0], np.int8), np.array([1.0, 0, 1, 0, 0]), (np.array([1, 0]), np.array([1, 0, 0]))]
)
def test_masks_are_written_from_the_observation_or_the_info(mask):
    spec = spec_of(MASKED, action=spaces.MultiDiscrete([2, 3])).with_action_mask()
    parts = written(MASKED, [{"action_mask": mask, "seen": np.zeros(2)}], spec=spec)
    assert parts["action_mask"].tolist() == [[True, False, True, False, False]]
    assert [part.name for part in spec.parts] == ["seen"]

    plain = spaces.Box(0, 1, (2,))
    spec = spec_of(plain, action=spaces.MultiDiscrete([2, 3])).with_action_mask()
    parts = written(plain, [np.ones(2)], [{"action_mask": mask}], spec=spec)
    assert parts["action_mask"].tolist() == [[True, False, True, False, False]]
    assert parts[""].tolist() == [[1, 1]]


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (np.ones(4, np.int8), "4 entries, expected 5"),
        (np.ones(4), "4 entries, expected 5"),
        (np.zeros(5), "allows no action"),
        (np.array([0.5, 0.5, 0, 0, 0]), "expected 0 and 1"),
        (np.array([1, 2, 0, 0, 0]), "expected 0 and 1"),
        (None, "mask is missing"),
    ],
)
def test_a_wrong_mask_is_refused(mask, message):
    plain = spaces.Box(0, 1, (2,))
    spec = spec_of(plain, action=spaces.MultiDiscrete([2, 3])).with_action_mask()
    with pytest.raises(MisfitError, match=message):
        written(plain, [np.ones(2)], [{} if mask is None else {"action_mask": mask}], spec=spec)


def test_equal_texts_give_equal_numbers_and_other_words_different_ones():
    space = spaces.Dict({"mission": spaces.Text(40)})
    texts = [{"mission": text} for text in ("go to the red ball", "go to the red ball", "go to the green key")]
    rows = written(space, texts)["mission"]
    assert (rows[0] == rows[1]).all()
    assert (rows[0] != rows[2]).any()
    assert rows[0].sum() == 5
