"""Every fault that once ruined training is inserted into the real code, and the check for it must fail."""

import inspect
import textwrap
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from support.own_forward import own_forward
from support.playing import token_spec
from support.properties import (
    check_boundaries,
    check_clipping,
    check_log_probs,
    check_no_graph,
    check_replay,
    check_rows_are_apart,
    check_values_are_fractions,
)
from support.running import Silent

from engram import Example, LSTMWrapper
from engram.agent.actions import CategoricalActions
from engram.agent.encoders import tokens
from engram.agent.policies import base, lstm_wrapper
from engram.agent.policies.base import Policy
from engram.agent.recurrent import CORES
from engram.agent.recurrent import store as recurrence
from engram.agent.recurrent.core import Core
from engram.agent.recurrent.store import MemoryStore
from engram.config.load import load
from engram.settings import UserError
from engram.training.experience import Experience
from engram.training.run import start


class Fault(NamedTuple):
    """A text in a function's source, its replacement, and the checks that must fail."""

    owner: Any
    function: str
    right: str
    wrong: str
    checks: tuple[Callable[[Policy], None], ...]


STARTS = "(found[0] if len(found) == 1 else found[0] | found[1]).t()"
RESETS = (check_boundaries,)
REPLAY = (check_replay,)

FAULTS = {
    "detach removed": Fault(MemoryStore, "write", ".detach()", "", (check_no_graph,)),
    "reset ignored": Fault(recurrence, "episode_starts", STARTS, f"{STARTS} & False", RESETS),
    "truncation ignored": Fault(recurrence, "episode_starts", "found[0] | found[1]", "found[0]", RESETS),
    "reset ignored inside segments": Fault(
        recurrence, "episode_starts", STARTS, f"{STARTS} & (torch.arange(steps) == 0).unsqueeze(1)", REPLAY
    ),
    "reset one step late in learning": Fault(
        recurrence,
        "episode_starts",
        STARTS,
        f"torch.nn.functional.pad({STARTS}, (0, 0, min(1, steps - 1), 0))[:steps]",
        REPLAY,
    ),
    "reset one step late in acting": Fault(
        lstm_wrapper,
        "run_with_memory",
        "memory_BLS, starts_TB, out)\n",
        "memory_BLS, starts_TB & False)\n    out = None\n"
        "    memory_BLS = memory_BLS.masked_fill(starts_TB[0].view(-1, 1, 1), 0)\n",
        (check_boundaries, check_replay),
    ),
    "reset of all rows when one ends": Fault(
        recurrence,
        "episode_starts",
        STARTS,
        f"{STARTS}.any(dim=1, keepdim=True).expand(steps, rows)",
        (check_boundaries, check_replay),
    ),
    "rows swapped": Fault(
        recurrence,
        "row_ids",
        "slice(first, first + rows)",
        "torch.arange(first, first + rows).flip(0)",
        (check_rows_are_apart, check_replay),
    ),
    "memory kept by the slice and not by the row": Fault(
        recurrence,
        "row_ids",
        "slice(first, first + rows)",
        "slice(0, rows)",
        (check_rows_are_apart, check_replay),
    ),
    "segment replayed from zero": Fault(recurrence, "read_memory", "[:, 0], None", "[:, 0] * 0, None", REPLAY),
    "segment replayed from another's memory": Fault(
        recurrence, "read_memory", "given is not None", "given is not None and steps == 1", REPLAY
    ),
    "normalisation in bytes": Fault(
        tokens,
        "decode",
        "values / normalizations[features]",
        "(value.byte() // normalizations[features].byte()).float()",
        (check_values_are_fractions,),
    ),
    "log-probability of another action in learning": Fault(
        CategoricalActions,
        "evaluate",
        "actions.long().reshape(-1, 1)",
        "(actions.long().reshape(-1, 1) + 1) % self.logits",
        (check_log_probs, check_replay),
    ),
    "log-probability of another action in acting": Fault(
        CategoricalActions,
        "sample",
        "return ActionSample(*sample_categorical(at_least_float32(logits), noise))",
        "right = ActionSample(*sample_categorical(at_least_float32(logits), noise))\n"
        "    return right._replace(actions=(right.actions + 1) % self.logits)",
        (check_log_probs, check_replay),
    ),
    "clipping left out": Fault(Policy, "clip_weights", "if self.clip_range > 0", "if False", (check_clipping,)),
    "clipping that does nothing": Fault(base, "clip_weights", "clip_range <= 0", "True", (check_clipping,)),
}


def break_it(monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    """Replace the function by one with the fault. Fails if its source no longer has the text."""
    function = getattr(fault.owner, fault.function)
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    assert source.count(fault.right) == 1, f"{fault.function} has changed: update the fault"
    scope: dict[str, Any] = {}
    exec(source.replace(fault.right, fault.wrong), inspect.unwrap(function).__globals__, scope)
    monkeypatch.setattr(fault.owner, fault.function, scope[fault.function])


def made(core: str = "lstm") -> Policy:
    torch.manual_seed(0)
    return Example(token_spec(), input_size=32, hidden_size=32, core=core)


CASES = [(name, check) for name, fault in FAULTS.items() for check in fault.checks]


@pytest.mark.parametrize(("name", "check"), CASES, ids=[f"{name}-{check.__name__}" for name, check in CASES])
def test_a_fault_is_detected(monkeypatch: pytest.MonkeyPatch, name: str, check: Callable[[Policy], None]) -> None:
    check(made())
    break_it(monkeypatch, FAULTS[name])
    with pytest.raises(AssertionError):
        check(made())


@pytest.mark.parametrize("core", CORES)
def test_a_core_that_ignores_starts_is_detected(monkeypatch: pytest.MonkeyPatch, core: str) -> None:
    right = Core.forward

    def forward(self, inputs, memory, starts, out=None):
        return right(self, inputs, memory, starts & False, out)

    monkeypatch.setattr(Core, "forward", forward)
    with pytest.raises(AssertionError):
        check_boundaries(made(core))


class OwnForward(Example):
    forward = own_forward


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (Fault(LSTMWrapper, "_manage_lstm_state", "self.lstm.pending_starts = starts", "pass", ()), check_replay),
        (Fault(LSTMWrapper, "_store_lstm_state", "self.memory.write", "(lambda *_: None)", ()), check_boundaries),
        (FAULTS["detach removed"], check_no_graph),
    ],
    ids=["starts inside a segment", "nothing stored", "detach removed"],
)
def test_faults_in_the_building_blocks_are_detected(monkeypatch: pytest.MonkeyPatch, fault: Fault, check) -> None:
    policy = OwnForward(token_spec(), input_size=32, hidden_size=32)
    check(policy)
    policy.reset_memory()
    break_it(monkeypatch, fault)
    with pytest.raises(AssertionError):
        check(policy)


def train(directory) -> None:
    sizes = ["num_envs=6", "bptt_horizon=8", "batch_size=96", "minibatch_size=96", "num_workers=0"]
    words = ["env=recall", "py_agent.hidden_size=8", f"runs_dir={directory}", "run=x", "trainer.total_timesteps=192"]
    settings = load([*words, *(f"trainer.{size}" for size in sizes)])
    settings.directory.mkdir(parents=True, exist_ok=True)
    start(settings, Silent())


@pytest.mark.parametrize(
    "fault",
    [
        Fault(Experience, "store_memory", "[segments] = value", "[segments] = value * 0", ()),
        Fault(
            Experience,
            "_minibatch",
            "_select(self.memory, segments)",
            "_select(self.memory, (segments - self.rows) % self.segments)",
            (),
        ),
        FAULTS["segment replayed from zero"],
        FAULTS["reset ignored inside segments"],
        FAULTS["log-probability of another action in learning"],
    ],
    ids=["memory not kept", "memory of the previous segment", "from zero", "no reset inside", "another action"],
)
def test_training_stops_at_a_fault(monkeypatch: pytest.MonkeyPatch, tmp_path, fault: Fault) -> None:
    break_it(monkeypatch, fault)
    with pytest.raises(UserError, match="has different memory in learning than in acting"):
        train(tmp_path)


def test_training_continues_without_a_fault(tmp_path) -> None:
    train(tmp_path)
