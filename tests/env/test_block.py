"""Buffers and finished episodes."""

import numpy as np

from engram.env.block import Buffers, Ended, Episodes
from engram.env.recall import spec
from engram.env.settings import Recall


def episodes(rows, **stats):
    count = len(rows)
    stats = {name: np.array(values, np.float32) for name, values in stats.items()}
    return Episodes(np.array(rows), np.ones(count, np.float32), np.ones(count, np.int32), stats)


def test_selected_rows_are_a_view():
    buffers = Buffers.allocate(spec(Recall()), rows=5)
    part = buffers.rows(2, 4)
    part.observations[:] = 1.0
    part.actions[:] = 3
    assert buffers.observations.sum(1).tolist() == [0, 0, 6, 6, 0]
    assert buffers.actions.tolist() == [0, 0, 3, 3, 0]
    assert part.observations.flags.c_contiguous


def test_buffers_have_the_layout_they_announce():
    buffers = Buffers.allocate(spec(Recall()), rows=5)
    for name, (shape, dtype) in Buffers.layout(spec(Recall()), 5).items():
        assert (getattr(buffers, name).shape, getattr(buffers, name).dtype) == (shape, dtype)


def test_concatenated_episodes_have_nan_for_missing_stats():
    joined = Episodes.concatenate([episodes([3], a=[1.0]), episodes([]), episodes([1, 2], b=[5.0, 6.0])])
    assert joined.rows.tolist() == [3, 1, 2]
    np.testing.assert_array_equal(joined.stats["a"], [1.0, np.nan, np.nan])
    np.testing.assert_array_equal(joined.stats["b"], [np.nan, 5.0, 6.0])


def test_concatenated_episodes_are_arrays_of_fixed_dtypes():
    in_lists = Ended([3, 7], [0.5, -1.0], [9, 4], {"hearts": [2.0, None]})
    hearts = np.array([2.0, np.nan])
    in_arrays = Ended(np.array([3, 7], np.int32), np.array([0.5, -1.0]), np.array([9, 4]), {"hearts": hearts})
    expected = episodes([3, 7], hearts=[2.0, np.nan])
    expected.returns, expected.lengths = np.array([0.5, -1.0], np.float32), np.array([9, 4], np.int32)
    for parts in ([in_lists], [in_arrays], [expected], [in_lists, episodes([])], [episodes([]), in_arrays]):
        joined = Episodes.concatenate(parts)
        for name in ("rows", "returns", "lengths"):
            np.testing.assert_array_equal(getattr(joined, name), getattr(expected, name), strict=True)
        np.testing.assert_array_equal(joined.stats["hearts"], expected.stats["hearts"], strict=True)


def test_concatenating_nothing_gives_no_episodes():
    joined = Episodes.concatenate([])
    assert len(joined) == 0
    columns = (joined.rows, joined.returns, joined.lengths)
    assert [column.dtype for column in columns] == [np.int64, np.float32, np.int32]


def test_selected_episodes_keep_their_stats():
    some = episodes([3, 1, 2], a=[1.0, 2.0, 3.0])
    for which in (np.array([2, 0]), np.array([True, False, True])):
        chosen = some.select(which)
        assert chosen.rows.tolist() == some.rows[which].tolist()
        assert chosen.stats["a"].tolist() == some.stats["a"][which].tolist()
