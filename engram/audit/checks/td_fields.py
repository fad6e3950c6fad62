"""The td: do both calls write every field in its shape and dtype, and leave their inputs unchanged?"""

from collections.abc import Iterator
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from engram.agent.actions import make_actions
from engram.audit.adapters.td import TdAdapter
from engram.audit.context import AuditContext
from engram.audit.result import Check, Verdict


def td_fields(audit: AuditContext) -> Verdict:
    """Checks fields, shapes, dtypes and batch sizes of both calls, and that inputs are not changed in place."""
    adapter = audit.adapter()
    assert isinstance(adapter, TdAdapter)
    problems = [f"acting: {problem}" for problem in _acting(audit, adapter)]
    if not audit.learning_error:
        problems += [f"learning: {problem}" for problem in _learning(audit, adapter)]
    finding = (
        "; ".join(problems) or "both calls write every field in its shape and dtype, and change nothing they were given"
    )
    return Verdict(not problems, len(problems), 0, finding, cause=problems[0] if problems else "")


def _acting(audit: AuditContext, adapter: TdAdapter) -> Iterator[str]:
    given = adapter.acting_td(audit.scenario(100, steps=1).batch(audit.every_row, 0))
    before, rows = given.clone(), audit.rows
    td = adapter.policy(given)
    space = audit.spec.single_action_space
    expected = {
        "actions": (rows, *space.shape),
        "act_log_prob": (rows,),
        "values": (rows,),
        "full_log_probs": (rows, _width(audit)),
    }
    yield from _differences(td, expected, torch.Size([rows]))
    yield from _shape_fields(td, rows, 1)
    yield from _changed(before, given, td)


def _learning(audit: AuditContext, adapter: TdAdapter) -> Iterator[str]:
    segment = audit.segment(101, end_chance=0.2)
    given = adapter.learning_td(segment)
    before, actions = given.clone(), segment.actions.clone()
    adapter.reset()
    td = adapter.policy(given, action=segment.actions)
    shape = segment.shape
    expected: dict[str, tuple[int, ...]] = dict.fromkeys(("act_log_prob", "entropy", "value"), shape)
    yield from _differences(td, {**expected, "full_log_probs": (*shape, _width(audit))}, torch.Size(shape))
    yield from _shape_fields(td, *shape)
    yield from _changed(before, given, td)
    if not torch.equal(actions, segment.actions):
        yield "the actions that were given are changed in place"


def _width(audit: AuditContext) -> int:
    space = make_actions(audit.spec)
    return space.sample(torch.zeros(1, space.logits), torch.full((1, space.noise), 0.5)).full_log_probs.shape[-1]


def _differences(td: Any, expected: dict[str, tuple[int, ...]], batch: torch.Size) -> Iterator[str]:
    if not isinstance(td, TensorDictBase):
        yield f"a {type(td).__name__} is returned, not the td"
        return
    if td.batch_size != batch:
        yield f"the td comes back with batch size {list(td.batch_size)}, not {list(batch)}"
    for name, shape in expected.items():
        value = td.get(name, None)
        if not isinstance(value, Tensor):
            yield f"{name} is missing"
        elif value.shape != shape and td.batch_size == batch:
            yield f"{name} is {list(value.shape)}, not {list(shape)}"
        elif name != "actions" and value.dtype not in (torch.float32, torch.float64):
            yield f"{name} is {value.dtype}, not {torch.float32}"


def _shape_fields(td: Any, rows: int, steps: int) -> Iterator[str]:
    for name, size in (("bptt", steps), ("batch", rows)):
        value = td.get(name, None) if isinstance(td, TensorDictBase) else None
        if not isinstance(value, Tensor):
            yield f"{name} is not set"
        elif value.dtype != torch.long or value.numel() != rows * steps:
            yield f"{name} is {value.dtype} {list(value.shape)}, not one long for each of {rows * steps} rows and steps"
        elif not (value == size).all():
            yield f"{name} is {int(value.flatten()[0])}, not {size}"


def _changed(before: TensorDictBase, given: TensorDictBase, td: Any) -> Iterator[str]:
    for name in before.keys(include_nested=True, leaves_only=True):
        for after in (given, td):
            value = after.get(name, None) if isinstance(after, TensorDictBase) else None
            old = before.get(name)
            if not isinstance(value, Tensor) or value.numel() != old.numel():
                continue
            if not torch.equal(value.reshape(old.shape), old):
                yield f"{name if isinstance(name, str) else '/'.join(name)} is changed in place"
                break


CHECKS = (
    Check(
        "td_fields",
        "Do both calls write every field in its shape and dtype, and leave what they were given as it was?",
        "Whoever reads the td (experience, losses, other components) gets nothing, or numbers of other rows and steps.",
        "self.set_shape_fields(td, rows, steps) sets bptt and batch; self.forward_inference(td, logits, value) and "
        "self.forward_training(td, action, logits, value) write the rest. Work on copies of what the td holds.",
        ("forward_inference", "forward_training", "forward"),
        td_fields,
        td_only=True,
        needs_learning=False,
    ),
)
