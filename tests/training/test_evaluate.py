"""Evaluation: whole episodes, as many of each environment, with a memory of its own."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import running
from tensordict import TensorDict

from engram import LSTMWrapper
from engram.agent.actions import GaussianActions
from engram.agent.metta_agent import MettaAgent
from engram.agent.settings import PyAgent
from engram.env.block import Episodes
from engram.env.registry import make_spec
from engram.env.settings import Gym, Recall
from engram.env.vector import VectorEnv
from engram.settings import UserError
from engram.training import evaluate as module
from engram.training.evaluate import Tally, copy_with_own_memory, evaluate

RECALL = Recall(delay=3, delay_jitter=2)


def make_agent(seed: int = 0) -> MettaAgent:
    torch.manual_seed(seed)
    return MettaAgent(make_spec(RECALL), PyAgent(hidden_size=8, num_layers=1))


def played(monkeypatch, *arguments, **options) -> list[list[int]]:
    """The actions of an evaluation, step by step."""
    actions: list[list[int]] = []
    send = VectorEnv.send
    with monkeypatch.context() as patch:
        patch.setattr(VectorEnv, "send", lambda env, batch, act: (actions.append(act.tolist()), send(env, batch, act)))
        evaluate(*arguments, **options)
    return actions


def by_hand(agent: MettaAgent, steps: int, rows: int, seed: int, forget: bool) -> list[list[int]]:
    """The most likely actions, step by step, with memory passed along in the open."""
    agent.eval()
    actions, memory = [], {name: torch.zeros(rows, *shape) for name, shape in agent.memory_shapes().items()}
    with VectorEnv(RECALL, rows, seed=seed) as env, torch.no_grad():
        env.reset()
        for _ in range(steps):
            batch = env.recv()
            first = torch.from_numpy(batch.buffers.starts.copy()) | forget
            agent.reset_memory()
            for name, store in agent.policy.stores().items():
                store.write(torch.arange(rows), memory[name] * ~first.view(-1, 1, 1))
            td = agent(TensorDict({"env_obs": torch.from_numpy(batch.buffers.observations)}, [rows]))
            memory = agent.memory_of(torch.arange(rows))
            actions.append(td["full_log_probs"].argmax(-1).tolist())
            env.send(batch, np.array(actions[-1]))
    return actions


@pytest.mark.parametrize("memory", ["carry", "reset", "off"])
def test_memory_lasts_as_long_as_an_episode_unless_it_is_off(monkeypatch, memory: str) -> None:
    agent = make_agent()
    actions = played(monkeypatch, agent, RECALL, 12, greedy=True, num_envs=4, seed=5, memory=memory)
    assert actions == by_hand(agent, len(actions), 4, 5, forget=memory == "off")
    assert actions != by_hand(agent, len(actions), 4, 5, forget=memory != "off")


def test_evaluation_does_not_change_the_agent() -> None:
    agent = make_agent()
    agent.reserve_memory(3)
    agent.policy.stores()["lstm"].write(torch.arange(3), torch.randn(3, 1, 16))
    before = {name: tensor.clone() for name, tensor in (agent.state_dict() | agent.stored_memory()).items()}
    random = torch.get_rng_state()
    evaluate(agent, RECALL, 8)
    after = agent.state_dict() | agent.stored_memory()
    assert all(
        torch.equal(tensor, after[name]) and tensor.shape == after[name].shape for name, tensor in before.items()
    )
    assert torch.equal(torch.get_rng_state(), random)
    assert agent.training


def test_the_copy_that_plays_shares_the_weights_and_has_its_own_memory() -> None:
    agent = make_agent()
    agent.policy.stores()["lstm"].write(torch.arange(2), torch.ones(2, 1, 16))
    copy = copy_with_own_memory(agent)
    assert all(a is b for a, b in zip(agent.parameters(), copy.parameters(), strict=True))
    assert not copy.training
    assert not copy.stored_memory()["lstm.memory"].any()
    assert agent.stored_memory()["lstm.memory"].all()


def test_a_policy_that_cannot_be_copied_is_a_user_error() -> None:
    agent = make_agent()
    agent.policy.lines = (line for line in "ab")  # type: ignore[assignment]
    with pytest.raises(UserError, match=r"Fast cannot be copied .*generator"):
        evaluate(agent, RECALL, 8)


def test_episodes_follow_from_the_seed_and_not_from_the_workers() -> None:
    agent = make_agent()
    found = evaluate(agent, RECALL, 24, num_envs=6, seed=3)
    assert evaluate(agent, RECALL, 24, num_envs=6, seed=3) == found
    assert evaluate(agent, RECALL, 24, num_envs=6, seed=3, num_workers=2) == found
    assert evaluate(agent, RECALL, 24, num_envs=6, seed=4) != found


def test_exactly_the_requested_episodes_are_played() -> None:
    for episodes in (1, 5, 32, 33, 70):
        assert evaluate(make_agent(), RECALL, episodes).episodes == episodes


class Leaning(LSTMWrapper):
    """Prefers the second of two actions a little; or, where actions are continuous, 0.25 with a deviation of 1."""

    def __init__(self, env: object, **kwargs) -> None:
        super().__init__(env, input_size=3, hidden_size=4, **kwargs)
        continuous = isinstance(self.action_space, GaussianActions)
        self.logits = torch.tensor([0.25, 0.0] if continuous else [0.0, 0.1])

    def encode_observations(self, observations):
        return observations[:, :3]

    def decode_actions(self, hidden):
        return self.logits.expand(len(hidden), -1), hidden.sum(1)


@pytest.mark.parametrize(("name", "likely"), [("CartPole-v1", 1), ("Pendulum-v1", [0.25])])
def test_greedy_takes_the_most_likely_action_and_otherwise_actions_are_sampled(monkeypatch, name: str, likely) -> None:
    env = Gym(id=name, max_steps=12)
    agent = MettaAgent(make_spec(env), Leaning(make_spec(env)))
    greedy = np.concatenate(played(monkeypatch, agent, env, 4, greedy=True))
    drawn = np.concatenate(played(monkeypatch, agent, env, 40))
    assert (greedy == likely).all()
    assert 0.2 < (drawn < 0.5).mean() < 0.8


def batch_of(*starts: bool) -> SimpleNamespace:
    return SimpleNamespace(rows=slice(0, len(starts)), buffers=SimpleNamespace(starts=np.array(starts)))


def episodes_of(*entries: tuple[int, float]) -> Episodes:
    rows, returns = (np.array(column) for column in zip(*entries, strict=True)) if entries else (np.zeros(0, int),) * 2
    return Episodes(rows, returns.astype(np.float32), np.ones(len(rows), np.int32), {"double": 2.0 * returns})


def test_short_episodes_count_no_more_than_long_ones() -> None:
    tally = Tally(np.array([2, 2]), agents=1)
    for step in range(1, 21):  # environment 0 ends at every step, with 0; environment 1 at every tenth, with 1
        tally.add(batch_of(True, step % 10 == 0), episodes_of((0, 0.0), *([(1, 1.0)] if step % 10 == 0 else [])))
        assert tally.complete == (step == 20)
    assert tally.result().returns.mean == 0.5


def test_agents_of_one_episode_are_not_treated_as_independent() -> None:
    together, apart = Tally(np.array([2]), agents=2), Tally(np.array([4]), agents=1)
    for value in (0.0, 1.0):
        together.add(batch_of(True, True), episodes_of((0, value), (1, value)))
        for _ in range(2):
            apart.add(batch_of(True), episodes_of((0, value)))
    wide, narrow = together.result(), apart.result()
    assert wide.returns.mean == narrow.returns.mean == 0.5
    assert wide.returns.high > narrow.returns.high  # type: ignore[operator]
    assert wide.episodes == 2


def test_each_agent_and_each_statistic_has_its_own_estimate() -> None:
    tally = Tally(np.array([1]), agents=3)
    tally.add(batch_of(True, False, False), episodes_of((0, 4.0)))  # leaves early, and its episode counts to this one
    tally.add(batch_of(True, True, True), episodes_of((1, 2.0)))  # the third was never there
    found = tally.result()
    assert [None if agent.returns is None else agent.returns.mean for agent in found.agents] == [4.0, 2.0, None]
    assert (found.returns.mean, found.stats["double"].mean) == (3.0, 6.0)
    assert found.to_json()["agents"][2] == {"agent": 2, "return": None, "length": None}
    assert found.to_json()["return"] == {"mean": 3.0, "low": None, "high": None, "std": None}
    assert found.record() == {"evaluate/return": 3.0, "evaluate/length": 1.0, "evaluate/double": 6.0}


def test_an_environment_whose_episodes_never_end_is_an_error(monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_STEPS_WITHOUT_END", 20)
    with pytest.raises(UserError, match=r"no episode of recall ended within 20 steps"):
        evaluate(make_agent(), Recall(delay=100), 2)


def test_training_is_the_same_with_evaluations_in_between_as_without(tmp_path) -> None:
    running.run(tmp_path, "trainer.evaluate_interval=1", "trainer.evaluate_episodes=7", name="with")
    running.run(tmp_path, name="without")
    assert running.metrics(tmp_path, "with") == running.metrics(tmp_path, "without")
    files = [tmp_path / name / "checkpoints" / "epoch_000003" / "weights.safetensors" for name in ("with", "without")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_evaluations_are_part_of_a_runs_metrics(tmp_path) -> None:
    running.run(tmp_path, "trainer.evaluate_interval=2", epochs=4)
    lines = (tmp_path / "x" / "metrics.jsonl").read_text().splitlines()
    assert ['"evaluate/return"' in line for line in lines] == [False, True, False, True]
    assert all(f'"evaluate/{name}"' in lines[1] for name in ("return_low", "return_high", "length", "correct"))
