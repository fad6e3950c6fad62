"""How many processors there are for us."""

import os


def available_cores() -> int:
    """The cores this process may use, which in a container or under a scheduler are not all there are."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1
