"""Root causes: which failed check explains the failures of which others."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class FailedCheck(Protocol):
    """A result that names its check."""

    @property
    def name(self) -> str: ...

    @property
    def finding(self) -> str: ...

    @property
    def passed(self) -> bool: ...


MEMORY = [
    "memory_used",
    "row_isolation",
    "causality",
    "boundary_acting",
    "boundary_learning",
    "nan_at_start",
    "gradient_boundary",
    "horizon",
    "gradient_exact",
    "memory_interface",
    "memory_after_learning",
    "replay",
]

# In the order in which causes are looked for: a check, and the checks that fail with it.
EXPLAINS: dict[str, Sequence[str]] = {
    "determinism": [*MEMORY, "modes", "precision", "compile", "action_log_prob", "graph_growth", "detachment"],
    "modes": [*MEMORY, "td_fields", "precision", "compile", "gradient_health"],
    "memory_used": [*MEMORY, "gradient_health"],
    "row_isolation": [*MEMORY],
    "causality": [
        "memory_used",
        "nan_at_start",
        "boundary_learning",
        "gradient_boundary",
        "horizon",
        "gradient_exact",
        "replay",
    ],
    "boundary_acting": [*MEMORY],
    "boundary_learning": ["nan_at_start", "gradient_boundary", "gradient_exact", "replay"],
    "detachment": [
        "graph_growth",
        "gradient_boundary",
        "gradient_exact",
        "gradient_health",
        "horizon",
        "memory_interface",
        "weight_clipping",
    ],
    "graph_growth": [],
    "gradient_boundary": ["gradient_exact", "horizon"],
    "horizon": ["gradient_exact", "gradient_health"],
    "gradient_exact": ["gradient_health"],
    "gradient_health": [],
    "nan_at_start": [],
    "memory_interface": ["memory_after_learning", "replay"],
    "memory_after_learning": ["replay"],
    "td_fields": ["replay", "action_log_prob", "precision"],
    "action_log_prob": ["replay"],
    "configuration": ["weight_clipping"],
    "loop_observations": [
        "loop_acting",
        "loop_order",
        "loop_start_state",
        "loop_starts",
        "loop_actions",
        "loop_replay",
    ],
    "loop_order": ["loop_start_state", "loop_starts", "loop_actions", "loop_replay"],
    "loop_acting": ["loop_replay"],
    "loop_starts": ["loop_start_state", "loop_replay"],
    "loop_start_state": ["loop_replay"],
    "precision": ["compile", "replay"],
    "replay": ["boundary_learning", "nan_at_start", "gradient_boundary", "horizon", "gradient_exact"],
}
NOT_FINITE = "gradients are not finite"
CLEARS_OTHERS = ("all rows are cleared", "the mask is inverted")  # mistakes at a start that show everywhere


LEARNING_DIFFERS = "learning differs from acting"
ACTING_DIFFERS = "acting differs from"


class RootCause(NamedTuple):
    root: FailedCheck
    consequences: tuple[FailedCheck, ...]


def _learning_differs_without_starts(replay: FailedCheck | None) -> bool:
    """Whether learning differs from acting also within episodes. Episode starts are then not the cause."""
    if replay is None or LEARNING_DIFFERS not in replay.finding:
        return False
    return "where an episode starts" not in replay.finding.partition(LEARNING_DIFFERS)[2]


def root_causes(results: Sequence[FailedCheck]) -> list[RootCause]:
    """Every failed check either as a root or as the consequence of one, the most probable root first."""
    failed = {result.name: result for result in results if not result.passed}
    order = [*EXPLAINS, *(name for name in failed if name not in EXPLAINS)]
    boundary = failed.get("boundary_acting")
    if boundary is not None and any(text in boundary.finding for text in CLEARS_OTHERS):
        order.insert(0, "boundary_acting")
    explains = dict(EXPLAINS)
    if _learning_differs_without_starts(failed.get("replay")):
        # Each of these two makes learning differ. A memory that is wrong in learning alone fails neither.
        others = () if ACTING_DIFFERS in failed["replay"].finding else ("action_log_prob", "memory_interface")
        first = next((name for name in others if name in failed), "replay")
        order.insert(order.index("boundary_learning"), first)
        explains[first] = [*EXPLAINS[first], *EXPLAINS["replay"]]
    if "causality" in failed and "row_isolation" not in failed:  # steps out of order look like no memory
        order.insert(order.index("memory_used"), "causality")
    if "gradient_health" in failed and NOT_FINITE in failed["gradient_health"].finding:
        order.insert(0, "gradient_health")
        explains["gradient_health"] = ["gradient_boundary", "horizon", "gradient_exact", "replay"]
    found = []
    for name in order:
        if (root := failed.pop(name, None)) is not None:
            explained = [failed.pop(other) for other in explains.get(name, ()) if other in failed]
            found.append(RootCause(root, tuple(explained)))
    return found
