"""Every check, in the order of the report."""

from engram.audit.checks import (
    boundaries,
    calls,
    choices,
    gradients,
    graphs,
    health,
    interface,
    numbers,
    options,
    replay,
    rows,
    sight,
)
from engram.audit.result import Check

MODULES = (graphs, rows, boundaries, gradients, replay, interface, calls, choices, options, numbers, health, sight)
CHECKS: dict[str, Check] = {check.name: check for module in MODULES for check in module.CHECKS}

# Worth repeating while a policy is trained.
CHEAP = ("detachment", "row_isolation", "boundary_acting", "boundary_learning", "replay", "learning_aside")
