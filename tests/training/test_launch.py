"""Which of several processes this is."""

import pytest

from engram.settings import UserError
from engram.training.launch import Place, place

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}


def test_without_torchrun_or_with_one_process_it_is_alone() -> None:
    assert place({}) == place(TORCHRUN | {"WORLD_SIZE": "1", "RANK": "0"}) == Place(0, 1, 0, 1)


def test_torchrun_says_where_it_stands() -> None:
    assert place(TORCHRUN) == Place(rank=3, size=4, local_rank=1, local_size=2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"RANK": "4"}, "RANK=4: with WORLD_SIZE=4 it must be 0 to 3"),
        ({"RANK": "first"}, "whole numbers are expected"),
    ],
)
def test_what_cannot_be_is_the_users_to_mend(change, said) -> None:
    with pytest.raises(UserError, match=said):
        place(TORCHRUN | change)


def test_half_of_what_torchrun_says_is_not_enough() -> None:
    with pytest.raises(UserError, match="LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT is not set"):
        place({"WORLD_SIZE": "2", "RANK": "0"})
