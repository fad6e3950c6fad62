"""The rank of this process, from the environment variables of `torchrun`. Does not import torch."""

import os
from collections.abc import Mapping
from typing import NamedTuple

from engram.settings import UserError

VARIABLES = {"rank": "RANK", "size": "WORLD_SIZE", "local_rank": "LOCAL_RANK", "local_size": "LOCAL_WORLD_SIZE"}
ADDRESS = ("MASTER_ADDR", "MASTER_PORT")  # where ranks connect


class RankInfo(NamedTuple):
    """The rank of a process and the number of ranks; by default a single rank."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # among the ranks on the same machine
    local_size: int = 1


def rank_info(environ: Mapping[str, str] = os.environ) -> RankInfo:
    """The rank of this process: a single one, unless torchrun started several."""
    if environ.get("WORLD_SIZE", "1") == "1":
        return RankInfo()
    if missing := [name for name in (*VARIABLES.values(), *ADDRESS) if name not in environ]:
        raise UserError(
            f"WORLD_SIZE={environ['WORLD_SIZE']} asks for several ranks, but {', '.join(missing)} is not set: "
            "start with torchrun, or unset WORLD_SIZE to train on a single rank"
        )
    try:
        found = RankInfo(**{field: int(environ[name]) for field, name in VARIABLES.items()})
    except ValueError as error:
        raise UserError(f"{', '.join(VARIABLES.values())}: expected whole numbers: {error}") from None
    if not 0 <= found.rank < found.size:
        raise UserError(f"RANK={found.rank}: with WORLD_SIZE={found.size} it must be 0 to {found.size - 1}")
    return found
