"""The store: rows that stay apart, stay small, and come back, also in another process."""

import copy
import gc
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.playing import play, token_spec, vector_env
from support.properties import act
from tensordict import TensorDict
from torch import Tensor, nn

from engram import EnvSpec, LSTMWrapper
from engram.agent.policies.base import Policy
from engram.agent.policy_factory import make_policy
from engram.agent.recurrent import CORES
from engram.agent.recurrent.store import MemoryStore
from engram.agent.settings import PyAgent


def ids(*numbers: int) -> Tensor:
    return torch.tensor(numbers)


def test_rows_never_written_are_zero_and_not_known() -> None:
    store = MemoryStore(2, 3)
    assert not store.read(ids(4, 0)).any()
    assert store.known_ids() == []


def test_memory_is_read_by_id_in_any_order() -> None:
    store = MemoryStore(1, 2)
    memory = torch.arange(6.0).view(3, 1, 2)
    store.write(ids(5, 1, 3), memory)
    assert torch.equal(store.read(ids(1, 3, 5)), memory[[1, 2, 0]])
    assert store.known_ids() == [1, 3, 5]


def test_reading_gives_a_copy() -> None:
    store = MemoryStore(1, 1)
    store.write(ids(0), torch.ones(1, 1, 1))
    before = store.read(ids(0))
    store.write(ids(0), torch.zeros(1, 1, 1))
    assert before.item() == 1


def test_written_memory_is_detached() -> None:
    store = MemoryStore(1, 2)
    store.write(ids(0), torch.ones(1, 1, 2, requires_grad=True) * 3)
    assert not store.memory_NLS.requires_grad


def test_the_store_grows_by_doubling_and_keeps_its_memory() -> None:
    store = MemoryStore(1, 1)
    sizes = set()
    for i in range(100):
        store.write(ids(i), torch.full((1, 1, 1), float(i)))
        sizes.add(store.capacity)
    assert len(sizes) < 9
    assert torch.equal(store.read(torch.arange(100)).flatten(), torch.arange(100.0))


def test_loading_replaces_everything() -> None:
    store = MemoryStore(1, 1)
    store.write(ids(0, 1), torch.ones(2, 1, 1))
    store.load({7: torch.full((1, 1), 5.0)})
    assert store.known_ids() == [7]
    assert not store.read(ids(0, 1)).any()


class Tiny(LSTMWrapper):
    def __init__(self, env, core: str):
        super().__init__(env, input_size=2, hidden_size=2, num_layers=1, core=core)
        self.head = nn.Linear(2, 5)

    def encode_observations(self, observations: Tensor) -> Tensor:
        return observations

    def decode_actions(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return self.head(hidden)[:, :4], self.head(hidden)[:, 4]


def live_tensors() -> list[Tensor]:
    gc.collect()
    return [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]


@pytest.mark.parametrize("core", CORES)
def test_many_steps_with_resets_leave_nothing_behind(core: str) -> None:
    rows, calls = 200, 150
    policy = Tiny(vector_env(2), core)
    sizes, counts = [], []
    for call in range(calls):  # with a graph at every step, as in the worst of rollouts
        ends = torch.rand(rows) < 0.05
        none = torch.zeros(rows, dtype=torch.bool)
        policy(TensorDict({"env_obs": torch.randn(rows, 2), "dones": ends, "truncateds": none}, [rows]))
        if call % 50 == 0:
            policy.reset_env_memory(call % rows)
            policy.set_memory(policy.get_memory())
        if call in (50, calls - 1):
            tensors = live_tensors()
            counts.append(len(tensors))
            sizes.append(policy.memory.memory_NLS.numel())
            assert policy.memory.memory_NLS.grad_fn is None
            assert not [tensor for tensor in tensors if tensor.shape[:1] == (rows,) and tensor.grad_fn is not None]
            del tensors
    assert sizes[0] == sizes[1] == rows * policy.lstm.memory_shape[1]
    assert counts[1] <= counts[0]  # fewer, when something of an earlier test was still there


def made(core: str = "lstm") -> Policy:
    torch.manual_seed(4)
    return make_policy(token_spec(), PyAgent(core=core, hidden_size=16))


def test_a_copy_of_a_policy_has_its_own_memory() -> None:
    policy = made()
    act(policy)
    other = copy.deepcopy(policy)
    act(other, 1)
    other.reset_env_memory(3)
    assert list(policy.get_memory()[0]) == [0, 1, 2, 3, 4, 5]
    assert not torch.equal(policy.get_memory()[0][0], other.get_memory()[0][0])


def future(policy: Policy) -> Tensor:
    """The outputs of the next three steps, with a new episode in the second."""
    starts = torch.tensor([False, True, False, False, False, False])
    with torch.no_grad():
        return torch.stack([act(policy, 7 + step, dones=starts & (step == 1))["full_log_probs"] for step in range(3)])


@pytest.mark.parametrize("core", CORES)
def test_memory_given_to_another_policy_of_the_same_weights_gives_the_same_future(core: str) -> None:
    policy, other = made(core), made(core)
    play(policy, 6, 5, 0.1)
    other.set_memory(policy.get_memory())
    assert torch.equal(future(other), future(policy))


def test_memory_read_from_a_file_gives_the_same_future(tmp_path: Path) -> None:
    policy = made()
    play(policy, 6, 5, 0.1)
    h, c = policy.get_memory()
    save_file(policy.state_dict(), tmp_path / "weights.safetensors")
    save_file(
        {f"{part}/{env_id}": row.contiguous() for part, rows in (("h", h), ("c", c)) for env_id, row in rows.items()},
        tmp_path / "memory.safetensors",
    )
    (tmp_path / "spec.json").write_text(json.dumps(policy.env_spec.to_json()), encoding="utf-8")
    restored = load_policy(tmp_path)
    assert torch.equal(future(restored), future(policy))


def load_policy(directory: Path) -> Policy:
    """A policy made from files alone."""
    spec = EnvSpec.from_json(json.loads((directory / "spec.json").read_text(encoding="utf-8")))
    policy = make_policy(spec, PyAgent(hidden_size=16))
    policy.load_state_dict(load_file(directory / "weights.safetensors"))
    memory: dict[str, dict[int, Tensor]] = {"h": {}, "c": {}}
    for name, row in load_file(directory / "memory.safetensors").items():
        part, env_id = name.split("/")
        memory[part][int(env_id)] = row
    policy.set_memory((memory["h"], memory["c"]))
    return policy


def test_a_range_of_rows_is_a_copy_where_gradients_are_wanted_and_the_memory_itself_where_not():
    store = MemoryStore(1, 2)
    store.write(slice(0, 3), torch.ones(3, 1, 2))
    kept = store.read(slice(0, 3))
    with torch.no_grad():
        itself = store.read(slice(0, 3))
    store.write(slice(0, 3), torch.zeros(3, 1, 2))
    assert kept.eq(1).all()
    assert itself.eq(0).all()


def test_new_memory_may_be_written_straight_to_a_range_of_rows_but_only_where_no_graph_can_be():
    store = MemoryStore(1, 2)
    with torch.no_grad():
        assert store.out(ids(0, 1)) is None  # rows here and there
        store.out(slice(1, 3)).fill_(5)
    assert store.out(slice(1, 3)) is None
    assert store.read(ids(0, 1, 2))[:, 0, 0].tolist() == [0, 5, 5]
    assert store.known_ids() == [1, 2]
