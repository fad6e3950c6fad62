"""Root causes: which failed check explains the failures of which others."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from engram.audit.result import CheckResult

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
    "loop_acting": ["loop_start_state", "loop_starts", "loop_replay"],
    "loop_starts": ["loop_start_state", "loop_replay"],
    "loop_start_state": ["loop_replay"],
    "precision": ["compile", "replay"],
    "replay": ["boundary_learning", "nan_at_start", "gradient_boundary", "horizon", "gradient_exact"],
}
# Words in the `finding` or `cause` of a failed check by which similar faults are told apart.
ONLY_AT_STARTS = "rows are mixed where episodes start"
ROUNDED = "memory is rounded when stored"  # which magnifies how rounding differs between batches
IN_THE_STORE = (
    "when stored",
    "environment ids collide",
    "have no memory",
)  # what a store does to all memory, also to one that is set
NOT_FINITE = "gradients are not finite"
CLEARS_OTHERS = ("all rows are cleared", "the mask is inverted")  # mistakes at a start that show everywhere


LEARNING_DIFFERS = "learning differs from acting"
ACTING_DIFFERS = "acting differs from"


# The fault that a check finds, where the check itself does not know more.
FAULTS: dict[str, str] = {
    "determinism": "outputs are not the same twice",
    "modes": "outputs differ between train() and eval(), or with and without gradients",
    "memory_used": "memory does not reach the outputs: it is not stored, not read, or cleared at every step",
    "row_isolation": "rows are mixed: a row's outputs depend on other rows",
    "causality": "the future leaks: outputs of a step depend on later observations",
    "boundary_acting": "memory is not cleared exactly where an episode starts",
    "boundary_learning": "learning does not clear memory exactly where an episode starts inside a segment",
    "detachment": "memory is kept with its autograd graph, not detached",
    "graph_growth": "what is kept grows with every step",
    "gradient_boundary": "gradients cross episode starts",
    "horizon": "the gradient through time is cut",
    "gradient_exact": "the gradient through time is not the true one",
    "gradient_health": "a part of the network gets no gradient, or one that explodes",
    "nan_at_start": "a NaN survives an episode start: memory is multiplied by 0, not replaced",
    "memory_interface": "memory cannot be read, restored or reset row by row",
    "memory_after_learning": "a learning call overwrites the memory that acting continues from",
    "replay": "acting and learning do not compute the same outputs",
    "td_fields": "the td's fields are missing, misshapen or overwritten",
    "action_log_prob": "the log-probability is not that of the action",
    "configuration": "options do not arrive",
    "weight_clipping": "some weights are not clipped",
    "precision": "outputs depend on the precision",
    "compile": "torch.compile does not take the policy as one graph",
    "observation_tokens": "some tokens do not reach the outputs",
}


class RootCause(NamedTuple):
    root: "CheckResult"
    consequences: "tuple[CheckResult, ...]"

    @property
    def sentence(self) -> str:
        """The fault in one clause; empty if nothing shorter than the finding is known."""
        return self.root.cause or FAULTS.get(self.root.name, "")

    @property
    def text(self) -> str:
        """The fault, the check that found it, and what fails with it."""
        after = ", ".join(result.name for result in self.consequences)
        named = f"{self.sentence} ({self.root.name})" if self.sentence else self.root.name
        return named + (f"; probable consequences: {after}" if after else "")


def _learning_differs_without_starts(replay: "CheckResult | None") -> bool:
    """Whether learning differs from acting also within episodes. Episode starts are then not the cause."""
    if replay is None or LEARNING_DIFFERS not in replay.finding:
        return False
    return "where an episode starts" not in replay.finding.partition(LEARNING_DIFFERS)[2]


def root_causes(results: "Sequence[CheckResult]") -> list[RootCause]:
    """Every failed check either as a root or as the consequence of one, the most probable root first."""
    failed = {result.name: result for result in results if not result.passed}
    # Names are inserted before their first place, which alone counts.
    order = [*EXPLAINS, *(name for name in failed if name not in EXPLAINS)]
    boundary = failed.get("boundary_acting")
    if boundary is not None and any(text in boundary.finding for text in CLEARS_OTHERS):
        order.insert(0, "boundary_acting")
    explains = dict(EXPLAINS)
    replay_cause = failed["replay"].cause if "replay" in failed else ""
    if _learning_differs_without_starts(failed.get("replay")):
        # Learning differs even without episode starts: the root is one of these two checks if acting is right.
        others = () if ACTING_DIFFERS in failed["replay"].finding else ("action_log_prob", "memory_interface")
        first = next((name for name in others if name in failed), "replay")
        order.insert(order.index("boundary_learning"), first)
        explains[first] = [*EXPLAINS[first], *EXPLAINS["replay"]]
    if "row_isolation" in failed and ONLY_AT_STARTS in failed["row_isolation"].cause:
        order.insert(0, "boundary_acting")
    if "row_isolation" in failed and ROUNDED in replay_cause:
        order.insert(0, "replay")
        explains["replay"] = [*explains["replay"], "row_isolation"]
    if "memory_interface" in failed and any(sign in replay_cause for sign in IN_THE_STORE):
        order.insert(order.index("memory_interface"), "replay")  # what is set is stored, and stored wrongly
        explains["replay"] = [*explains["replay"], "memory_interface"]
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
