"""All checks, in the order in which one fault causes another."""

from engram.audit.checks import (
    action_log_prob,
    boundary,
    configuration,
    detachment,
    determinism,
    gradient_exact,
    gradient_health,
    gradient_reach,
    memory_interface,
    nan_at_start,
    observation_tokens,
    precision,
    replay,
    row_isolation,
    td_fields,
)
from engram.audit.result import Check

MODULES = (
    determinism,
    detachment,
    row_isolation,
    boundary,
    nan_at_start,
    gradient_reach,
    gradient_exact,
    memory_interface,
    replay,
    td_fields,
    action_log_prob,
    configuration,
    precision,
    gradient_health,
    observation_tokens,
)
CHECKS: dict[str, Check] = {check.name: check for module in MODULES for check in module.CHECKS}

# Repeated during training.
CHEAP = ("detachment", "row_isolation", "boundary_acting", "boundary_learning", "memory_after_learning", "replay")
