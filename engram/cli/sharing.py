"""How torch's threads wait for each other: by spinning where the machine is theirs alone, else asleep."""

import os

import psutil

POLICY, SPINS = "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"
LOOK = 0.1  # seconds
BUSY = 0.3  # processors that others use


def share_the_machine() -> None:
    """Has to come before torch is loaded, and leaves alone what the user has set.

    To spin saves a quarter of the time of learning with two threads. Beside another busy program it makes it three to
    six times as long: who waits takes the processor from who is waited for.
    """
    if POLICY in os.environ or SPINS in os.environ:
        return
    if psutil.cpu_percent(interval=LOOK) / 100 * (psutil.cpu_count() or 1) > BUSY:
        os.environ[POLICY] = "PASSIVE"
