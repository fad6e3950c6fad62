"""How often observations change, by hand."""

import pytest
import torch

from engram.training.metrics import changes

NO, YES = False, True


@pytest.mark.parametrize(
    ("observations", "starts", "expected"),
    [
        ([[1, 1, 1, 1]], [[YES, NO, NO, NO]], 0.0),
        ([[1, 1, 2, 2]], [[YES, NO, NO, NO]], 1 / 3),
        ([[1, 1, 2, 2]], [[YES, NO, YES, NO]], 0.0),  # a new episode is no change
        ([[1, 2, 3, 4], [5, 5, 5, 5]], [[NO, NO, NO, NO], [NO, NO, NO, NO]], 0.5),
        ([[1, 2, 3]], [[YES, YES, YES]], None),  # episodes of one step
        ([[1]], [[NO]], None),
    ],
)
def test_changes_are_counted_inside_episodes(observations, starts, expected):
    found = changes(torch.tensor(observations).unsqueeze(-1), torch.tensor(starts))
    assert found == (None if expected is None else pytest.approx(expected))
