"""The rank of a process, from the variables of torchrun."""

import pytest

from engram.settings import UserError
from engram.training.launch import RankInfo, rank_info

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}


def test_without_torchrun_there_is_a_single_rank() -> None:
    assert rank_info({}) == rank_info(TORCHRUN | {"WORLD_SIZE": "1", "RANK": "0"}) == RankInfo(0, 1, 0, 1)


def test_ranks_are_read_from_the_variables_of_torchrun() -> None:
    assert rank_info(TORCHRUN) == RankInfo(rank=3, size=4, local_rank=1, local_size=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": "4"}, "RANK=4: with WORLD_SIZE=4 it must be 0 to 3"),
        ({"RANK": "first"}, "expected whole numbers"),
    ],
)
def test_impossible_ranks_raise_a_user_error(change, message) -> None:
    with pytest.raises(UserError, match=message):
        rank_info(TORCHRUN | change)


def test_missing_variables_are_named() -> None:
    with pytest.raises(UserError, match="LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT is not set"):
        rank_info({"WORLD_SIZE": "2", "RANK": "0"})
