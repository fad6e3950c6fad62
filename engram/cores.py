"""The number of cores this process may use."""

import os


def available_cores() -> int:
    """Cores this process may use; in a container or under a scheduler, fewer than the machine has."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1
