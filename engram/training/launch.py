"""Which of several processes this is, by what `torchrun` tells each of them. Light to import: torch is not loaded."""

import os
from collections.abc import Mapping
from typing import NamedTuple

from engram.settings import UserError

VARIABLES = {"rank": "RANK", "size": "WORLD_SIZE", "local_rank": "LOCAL_RANK", "local_size": "LOCAL_WORLD_SIZE"}
MEETING = ("MASTER_ADDR", "MASTER_PORT")  # where the processes find each other


class Place(NamedTuple):
    """One process among those that train together; by default the only one."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # among those of the same machine
    local_size: int = 1


def place(environ: Mapping[str, str] = os.environ) -> Place:
    """Where this process stands: alone, unless it was started by torchrun as one of several."""
    if environ.get("WORLD_SIZE", "1") == "1":
        return Place()
    if missing := [name for name in (*VARIABLES.values(), *MEETING) if name not in environ]:
        raise UserError(
            f"WORLD_SIZE={environ['WORLD_SIZE']} says that several processes train together, but {', '.join(missing)} "
            "is not set: start them with torchrun, or unset WORLD_SIZE to train alone"
        )
    try:
        found = Place(**{field: int(environ[name]) for field, name in VARIABLES.items()})
    except ValueError as error:
        raise UserError(f"{', '.join(VARIABLES.values())}: whole numbers are expected: {error}") from None
    if not 0 <= found.rank < found.size:
        raise UserError(f"RANK={found.rank}: with WORLD_SIZE={found.size} it must be 0 to {found.size - 1}")
    return found
