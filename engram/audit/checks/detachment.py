"""Does stored state carry a graph, and does memory grow?"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import psutil
import torch
from torch import Tensor

from engram.audit.adapters.base import PolicyAdapter, PolicyOutput
from engram.audit.checks.row_isolation import state_after_call
from engram.audit.context import AuditContext
from engram.audit.difference import EXACT, max_difference
from engram.audit.result import Check, Verdict
from engram.audit.retained import graph_nodes, is_module_attribute, retained_size, retained_sizes, retained_tensors
from engram.audit.scenario import Scenario, play

WINDOW, WINDOWS = 10, 2  # growth is measured over windows of so many acting steps
OUTSIDE = "a tensor outside the module, in a global, class attribute or closure"
LEAK = 65536  # bytes by which the process may grow in a window


def detachment(audit: AuditContext) -> Verdict:
    """A backward pass must not lead into an earlier call, and no retained tensor may have a graph."""
    scenario, adapter = audit.scenario(70, steps=4), audit.adapter()
    # Kept, since the nodes of a graph live only as long as its outputs.
    outputs = [adapter.act(scenario.batch(audit.every_row, step)) for step in range(scenario.steps)]
    graphs = [graph_nodes(_tensors(output)) for output in outputs]
    shared = len(graphs[-1] & graphs[-2])
    in_state = [name for name, value in state_after_call(audit).items() if getattr(value, "grad_fn", None) is not None]
    kept, idle = _kept_with_a_graph(audit, scenario)
    kept += [f"state['{name}']" for name in in_state]
    between_learning = _shared_by_learning_calls(audit)
    large = _shared_at_size(audit) if not (shared or kept) else 0
    measured = max(shared, between_learning, len(kept), large)
    text = f"backward from a step runs through {shared} operations of the call before"
    if between_learning:
        text += f"; from a learning call, through {between_learning} operations of the learning call before"
    if kept:
        text += f"; kept with a graph: {', '.join(kept)}"
    if large:
        text += f"; with {audit.sizes.rows} rows, through {large}"
    notes = tuple(f"{name} keeps the graph of the last call alive, though nothing uses it again" for name in idle)
    cause = f"{kept[0]} is kept between calls with its autograd graph, not detached" if kept else ""
    if large:
        cause = (
            f"memory is kept with its autograd graph when a batch has {audit.sizes.rows} rows; in small ones it is not"
        )
    return Verdict(measured == 0, measured, 0, text, cause=cause, where=kept[0] if kept else "", notes=notes)


def _shared_at_size(audit: AuditContext) -> int:
    """The number of operations of an acting call in the graph of the next one, with the number of rows of a run."""
    rows = audit.sizes.rows
    scenario, adapter = audit.scenario(75, rows=rows, steps=2), audit.adapter()
    outputs = [adapter.act(scenario.batch(slice(0, rows), step)) for step in range(2)]
    one, other = (graph_nodes(_tensors(output)) for output in outputs)
    return len(one & other)


def _kept_with_a_graph(audit: AuditContext, scenario: Scenario) -> tuple[list[str], list[str]]:
    """Tensors with a graph that stay alive after a call: in modules and anywhere else; and in helper objects.

    A helper object, such as a distribution that is refilled in every call, only keeps the last graph alive.
    """
    kept: dict[str, None] = {}
    idle: dict[str, None] = {}
    segment = audit.segment(74)
    for learning in (False, True):
        if learning and audit.learning_error:
            continue
        adapter = audit.adapter()
        gc.collect()
        with _only_new_objects():
            if learning:
                adapter.learn(segment, after_acting=True)
            else:
                for step in (0, 1):
                    adapter.act(scenario.batch(audit.every_row, step))
            gc.collect()
            for name, direct in _alive_with_a_graph(adapter):
                (kept if direct or _is_used_again(audit, name, scenario, learning) else idle)[name] = None
    return list(kept), list(idle)


def _alive_with_a_graph(adapter: PolicyAdapter) -> list[tuple[str, bool]]:
    """Names of the tensors with a graph that are alive, and whether each is in a module or outside, not in a helper."""
    alive = [t for t in gc.get_objects() if issubclass(type(t), Tensor) and t.grad_fn is not None]
    names = {id(tensor): name for name, tensor in retained_tensors(adapter.policy).items()}
    held = graph_nodes(tensor for tensor in alive if id(tensor) in names)  # what those graphs hold is not kept as well
    outside = any(id(tensor) not in names and tensor.grad_fn not in held for tensor in alive)
    inside = [names[id(tensor)] for tensor in alive if id(tensor) in names]
    found = [(OUTSIDE, True)] if outside else []
    return found + [(name, is_module_attribute(adapter.policy, name)) for name in inside]


def _shared_by_learning_calls(audit: AuditContext) -> int:
    """The number of operations of a learning call in the graph of the next one."""
    if audit.learning_error:
        return 0
    adapter, segment = audit.adapter(), audit.segment(73)
    outputs = [adapter.learn(segment, after_acting=True) for _ in range(2)]
    one, other = (graph_nodes(_tensors(output)) for output in outputs)
    return len(one & other)


def _is_used_again(audit: AuditContext, name: str, scenario: Scenario, learning: bool) -> bool:
    """Whether the retained tensor of this name changes the next output."""
    outputs = []
    for wiped in (False, True):
        adapter = audit.adapter()
        play(adapter, scenario.part(0, 2))
        if learning:
            adapter.learn(audit.segment(74), after_acting=True)
        kept = retained_tensors(adapter.policy).get(name)
        if kept is None:
            return True
        if wiped:
            kept.data.add_(1.0) if kept.is_floating_point() else kept.data.zero_()
        outputs.append(adapter.act(scenario.batch(audit.every_row, 2)).numbers().detach())
    return max_difference(outputs[0], outputs[1]) > EXACT


def graph_growth(audit: AuditContext) -> Verdict:
    """Over many steps, resets and learning calls, the graph, live tensors, retained state and process must not grow."""
    adapter, scenario = audit.adapter(), audit.scenario(71, steps=10, end_chance=0.1)
    sizes = torch.tensor([_graph_after(adapter, scenario, step) for step in range(30)], dtype=torch.float32)
    nodes = float(sizes[29] - sizes[9]) / 20  # at the same point of each cycle
    with _only_new_objects():
        with torch.no_grad():
            steps = _growth(adapter, lambda: _window(adapter, scenario), WINDOW)
            resets = _growth(adapter, lambda: _window(adapter, scenario, reset=True), WINDOW)
        learning = _growth(adapter, _learning_call(audit, adapter), 1) if not audit.learning_error else Growth()
    acting = Growth(*(max(pair) for pair in zip(steps, resets, strict=True)))
    leaks = min(steps.process, resets.process) * WINDOW > LEAK
    measured = max(nodes, acting.kept, acting.tensors, learning.kept, learning.tensors, 0.0)
    finding = (
        f"a step adds {nodes:.2g} operations to the graph, {acting.tensors:.2g} live tensors and {acting.kept:.2g} "
        f"entries or numbers to what is kept; a learning call adds {learning.tensors:.2g} live tensors and "
        f"{learning.kept:.2g} to what is kept; the process grew by {steps.process / 1024:.2g} KiB a step"
    )
    grown = _grown(audit) if acting.kept > 0 or learning.kept > 0 else ""
    cause = f"{grown} grows with every call" if grown else ""
    return Verdict(measured <= 0 and not leaks, measured, 0, finding, cause=cause, evidence={"graph_nodes": sizes})


def _grown(audit: AuditContext) -> str:
    """The container or tensor of the policy that grows most over some calls."""
    adapter, scenario = audit.adapter(), audit.scenario(71, steps=2)
    before: dict[str, int] = {}
    for number in range(3):
        _window(adapter, scenario)
        if not audit.learning_error:
            _learning_call(audit, adapter)()
        before = retained_sizes(adapter.policy) if number == 0 else before
    growth = {name: size - before.get(name, 0) for name, size in retained_sizes(adapter.policy).items()}
    grown = {name: added for name, added in growth.items() if name in before and added > 0}
    return max(grown, key=lambda name: grown[name], default="")


class Growth(NamedTuple):
    """Growth of memory per call."""

    kept: float = 0.0  # entries and numbers that the policy holds
    tensors: float = 0.0  # alive in the process
    process: float = 0.0  # bytes, in the window with the least


def _growth(adapter: PolicyAdapter, again: Callable[[], object], times: int) -> Growth:
    """The growth per call over some windows, after a first one that may fill caches."""
    again()
    seen = [_sizes(adapter)]
    for _ in range(WINDOWS):
        again()
        seen.append(_sizes(adapter))
    kept, tensors = ((seen[-1][i] - seen[0][i]) / (WINDOWS * times) for i in (0, 1))
    return Growth(kept, tensors, min(after[2] - before[2] for before, after in pairwise(seen)) / times)


def _sizes(adapter: PolicyAdapter) -> tuple[int, int, int]:
    gc.collect()
    tensors = sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())
    return retained_size(adapter.policy), tensors, psutil.Process().memory_info().rss


def _learning_call(audit: AuditContext, adapter: PolicyAdapter) -> Callable[[], object]:
    return partial(adapter.learn, audit.segment(72, end_chance=0.1), after_acting=True)


def _graph_after(adapter: PolicyAdapter, scenario: Scenario, step: int) -> int:
    output = adapter.act(scenario.batch(slice(0, scenario.rows), step % scenario.steps))
    return len(graph_nodes([*_tensors(output), *retained_tensors(adapter.policy).values()]))


def _tensors(output: PolicyOutput) -> list[Tensor]:
    return [output.value, output.log_prob, *([output.full] if output.full is not None else [])]


def _window(adapter: PolicyAdapter, scenario: Scenario, reset: bool = False) -> None:
    """Steps and episodes, as a long run has them."""
    for step in range(WINDOW):
        adapter.act(scenario.batch(slice(0, scenario.rows), step % scenario.steps))
    if reset:
        adapter.reset()


@contextmanager
def _only_new_objects() -> Iterator[None]:
    """Ignores older objects, so that counting is quick."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


CHECKS = (
    Check(
        "detachment",
        "Is everything that is kept between calls free of the autograd graph?",
        "Every backward pass runs through all earlier steps and episodes: gradients pile up and explode, updates get "
        "slower, memory runs out, and training collapses after a good beginning.",
        "Detach what you store: self._store_lstm_state(h, c, env_id) does it. With a store of your own: keep "
        "h.detach() and c.detach().",
        ("_store_lstm_state", "get_action_and_value", "forward_eval", "forward"),
        detachment,
        fix_without_engram="Do not keep tensors with a graph in the module from one call to the next: keep x.detach().",
        needs_learning=False,
    ),
    Check(
        "graph_growth",
        "Do the graph, the tensors and the memory of the process stay the same size, however many steps are made?",
        "Training gets slower with every step and ends when memory runs out.",
        "Replace what you keep for a row by its next value, detached; do not append, and do not key it by anything "
        "that is new at every step.",
        ("_store_lstm_state", "get_action_and_value", "forward_eval", "forward"),
        graph_growth,
        needs_learning=False,
    ),
)
