"""Does a learning call leave alone the memory that acting continues from?"""

import torch

from engram.audit.context import AuditContext
from engram.audit.difference import max_difference, tolerance
from engram.audit.result import Check, DoesNotApplyError, Verdict
from engram.audit.scenario import play


def memory_after_learning(audit: AuditContext) -> Verdict:
    """A learning call must not change the memory that acting continues from."""
    audit.needs_memory()
    adapter = audit.adapter()
    if adapter.resets_between_rollouts:
        raise DoesNotApplyError("its training loop forgets everything before a rollout")
    scenario, later = audit.scenario(92, steps=3), audit.scenario(93, steps=2)
    outputs = []
    for needs_learning in (False, True):
        adapter.reset()
        with torch.no_grad():
            play(adapter, scenario)
            memory = adapter.memory_of(list(range(audit.rows)))
        if needs_learning:
            adapter.learn(audit.segment(94), memory, after_acting=True)
        with torch.no_grad():
            outputs.append(play(adapter, later).numbers)
    measured, bound = max_difference(outputs[0], outputs[1]), tolerance(outputs[0])
    return Verdict(
        measured <= bound,
        measured,
        bound,
        f"a learning call changes the outputs when acting goes on by {measured:.2g}",
    )


CHECKS = (
    Check(
        "memory_after_learning",
        "Does a learning call leave alone the memory that acting continues from?",
        "After every update agents go on with the memory of some training segment, not with their own.",
        "Store memory only when acting: self._store_lstm_state does nothing when env_id is None, as it is when "
        "learning.",
        ("_store_lstm_state", "forward"),
        memory_after_learning,
    ),
)
