"""trainer.audit: the policy is looked at while it is trained, and training is not touched by it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from audit.broken.wrapper import DoesNotTellTheCore, OwnForward
from support.playing import play, vector_env
from support.running import BATCH, RECALL, SMALL, Silent, metrics, run

from engram import MettaAgent
from engram.audit import MemoryFaultError, cheap_checks, stop_on_memory_fault
from engram.cli.main import main
from engram.config.load import load
from engram.config.run_directory import prepare_directory
from engram.settings import UserError
from engram.training.run import start

ENV = ("env=recall", "env.delay=4")  # whose episodes continue from one rollout to the next


def audited(directory: Path, every: int, name: str, looks: list[Any]) -> None:
    """Three epochs with an audit; what it is given goes to `looks`."""
    words = [*ENV, *SMALL, f"trainer.total_timesteps={3 * BATCH}", f"trainer.audit={every}"]
    settings = load([*words, f"run={name}", f"runs_dir={directory}"])
    prepare_directory(settings)

    def look(agent: MettaAgent) -> None:
        looks.append(agent.policy)
        stop_on_memory_fault(agent)

    start(settings, Silent(), audit=look)


def test_a_run_with_audits_is_the_run_without(tmp_path: Path) -> None:
    looks: list[Any] = []
    run(tmp_path, *ENV, name="without")
    audited(tmp_path, 1, "with", looks)
    assert len(looks) == 3
    assert metrics(tmp_path, "with") == metrics(tmp_path, "without")


def test_it_is_looked_at_every_so_many_epochs(tmp_path: Path) -> None:
    looks: list[Any] = []
    audited(tmp_path, 2, "x", looks)
    assert len(looks) == 1


def test_an_audit_leaves_memory_gradients_mode_and_chance_as_they_are() -> None:
    policy = OwnForward(vector_env())
    agent = MettaAgent(vector_env(), policy)
    play(policy, 4, 3, 0.1)
    policy.critic.weight.grad = torch.ones_like(policy.critic.weight)
    memory, weights = policy.get_memory(), [p.clone() for p in policy.parameters()]
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    stop_on_memory_fault(agent)
    assert all(torch.equal(row, policy.get_memory()[0][i]) for i, row in memory[0].items())
    assert all(torch.equal(p, old) for p, old in zip(policy.parameters(), weights, strict=True))
    assert torch.equal(policy.critic.weight.grad, torch.ones_like(policy.critic.weight))
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()
    assert policy.training


def test_a_failure_is_one_message_that_says_what_so_what_where_and_the_fix() -> None:
    agent = MettaAgent(vector_env(), DoesNotTellTheCore(vector_env()))
    with pytest.raises(MemoryFaultError) as caught:
        stop_on_memory_fault(agent)
    said = str(caught.value)
    (failure,) = [result for result in cheap_checks(agent, vector_env()) if result.name == "boundary_learning"]
    assert caught.value.exit_code == 1
    assert "DoesNotTellTheCore fails" in said
    for part in (failure.finding, failure.effect, failure.where, failure.fix):
        assert part in said


def test_a_run_with_a_wrong_policy_is_stopped(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    place = Path(__file__).parent / "broken" / "wrapper.py"
    words = [*RECALL, *SMALL[1:], "trainer.total_timesteps=960", "trainer.audit=2", "trainer.replay_error_bound=100"]
    assert main(["train", f"py_agent={place}:DoesNotTellTheCore", "run=x", *words]) == 1
    assert "trainer.audit: DoesNotTellTheCore fails" in capsys.readouterr().err
    assert [path.name for path in sorted(Path("runs/x/checkpoints").glob("epoch_*"))] == ["epoch_000001"]


def test_a_run_that_has_nothing_to_audit_with_says_so(tmp_path: Path) -> None:
    settings: Any = SimpleNamespace(trainer=SimpleNamespace(audit=1))
    with pytest.raises(UserError, match=r"audit=engram\.audit\.stop_on_memory_fault"):
        start(settings, Silent())
