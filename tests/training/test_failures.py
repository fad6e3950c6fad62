"""Runs whose environments fail: what is learned from, what is counted, and how they end."""

from pathlib import Path

import pytest
import torch
from support.running import BATCH, RECALL, SMALL, Silent, log, metrics, run
from tensordict import TensorDict

from engram import Experience
from engram.config.load import load
from engram.config.run_directory import prepare_directory
from engram.env.errors import EnvError
from engram.training.advantage import compute_advantages, vtrace
from engram.training.experience import Minibatch, learnable
from engram.training.run import start
from engram.training.settings import PPO

ENV = """
import fcntl
import os

import gymnasium
import numpy as np


class Fragile(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def __init__(self, counter, times, way="raise"):
        self.counter, self.times, self.way = counter, times, way

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._look(), {}

    def step(self, action):
        self.t += 1
        self.steps += 1
        if self.steps == 70 and self._claim():  # after the check before a run
            if self.way == "die":
                os._exit(3)
            if self.way == "exit":
                raise SystemExit(3)
            if self.way == "bad number":
                return self._look(), float("nan"), False, False, {}
            raise ArithmeticError("the wheel came off")
        return self._look(), float(action), self.t == 5, False, {}

    def _claim(self):
        with open(self.counter, "a") as file:  # locked: workers reach this step at the same time
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.path.getsize(self.counter) >= self.times:
                return False
            file.write("x")
            file.flush()
            return True

    def _look(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)
"""


@pytest.fixture
def fragile(tmp_path: Path):
    """Words for a run whose environments fail so many times."""
    (tmp_path / "fragile.py").write_text(ENV)
    (tmp_path / "counter").write_text("")

    def words(times: int, way: str = "raise") -> tuple[str, ...]:
        file, counter = tmp_path / "fragile.py", tmp_path / "counter"
        kwargs = f"{{counter: {counter}, times: {times}, way: {way}}}"
        return ("env=python", f"env.name={file}:Fragile", f"env.kwargs={kwargs}")

    return words


def make_experience() -> Experience:
    """2 rows of 2 segments of 3 steps: every action is worth its step's number."""
    spec = TensorDict({"env_obs": torch.zeros(2), "actions": torch.zeros((), dtype=torch.long)})
    experience = Experience(2, 12, 3, 6, spec)
    experience.begin()
    return experience


def store(experience: Experience, steps: range, starts: tuple[int, ...] = ()) -> None:
    for step in steps:
        flag = torch.full((2,), step in starts)
        no = torch.zeros(2, dtype=torch.bool)
        fields = {"starts": flag, "dones": flag, "truncateds": no, "alive": ~no, "final_values": torch.zeros(2)}
        values = {"rewards": torch.full((2,), float(step)), "values": torch.full((2,), 0.5)}
        td = TensorDict({**fields, **values}, [2])
        if step == 6:
            experience.store_bootstrap(td, slice(0, 2))
        else:
            experience.store(td, slice(0, 2))


ROW_1 = torch.tensor([False, True])


@pytest.mark.parametrize(
    ("at", "starts", "masked"),
    [
        (0, (), []),
        (1, (), [0]),
        (3, (), [0, 1, 2]),
        (3, (1,), [1, 2]),
        (3, (2,), [2]),
        (4, (), [3]),
        (5, (1,), [3, 4]),
        (5, (4,), [4]),
        (6, (4,), [4, 5]),
    ],
)
def test_an_interrupted_row_loses_its_running_episode_back_to_the_start_of_the_segment(at, starts, masked) -> None:
    experience = make_experience()
    store(experience, range(at), starts)
    experience.mask_unfinished(ROW_1, slice(0, 2))
    store(experience, range(at, 7), (*starts, at))
    assert experience.by_row("masked").nonzero().tolist() == [[1, step] for step in masked]


def test_masked_steps_have_no_advantage_and_steps_before_them_bootstrap_from_the_first_of_them() -> None:
    values, next_values = torch.full((1, 4), 2.0), torch.full((1, 4), 2.0)
    rewards, ends = torch.tensor([[1.0, 3.0, torch.nan, 5.0]]), torch.zeros(1, 4, dtype=torch.bool)
    masked = torch.tensor([[False, False, True, False]])
    advantages, returns, _ = vtrace(values, next_values, rewards, ends, torch.ones(1, 4), 0.5, 0.5, masked_RT=masked)
    # The errors are reward + 0.5 * 2 - 2; the first one adds 0.25 of the second.
    assert advantages.tolist() == [[0.0 + 0.25 * 2.0, 2.0, 0.0, 4.0]]
    assert returns[0, 2] == 2.0


def test_what_masked_steps_were_paid_changes_nothing_that_is_learned() -> None:
    results = []
    for reward in (0.0, 1e6):
        experience = make_experience()
        store(experience, range(5))
        experience.mask_unfinished(ROW_1, slice(0, 2))
        store(experience, range(5, 7), (5,))
        experience.buffer["rewards"][3, 2] = reward  # row 1, step 5: the outcome of step 4, which is unknown
        advantages = compute_advantages(experience, PPO())
        minibatches = experience.minibatches(advantages, torch.Generator().manual_seed(0))
        weights = torch.cat([minibatch.weights for minibatch in minibatches])
        results.append((advantages.advantages, weights, advantages.returns[learnable(experience.buffer)]))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
    assert (results[0][1] == 0).sum() == 2  # steps 3 and 4 of row 1


def test_a_run_goes_on_after_an_environment_raised_and_counts_it(tmp_path, fragile) -> None:
    run(tmp_path, *fragile(times=1), epochs=6)
    counts = [record["env/worker_restarts"] for record in metrics(tmp_path)]
    assert counts[0] == 0
    assert counts[-1] == 1
    assert len(counts) == 6
    assert max(record["memory/replay_error"] for record in metrics(tmp_path)) < 1e-5
    assert "the wheel came off" in log(tmp_path)


def test_a_run_goes_on_after_a_worker_exited(tmp_path, fragile) -> None:
    run(tmp_path, *fragile(times=1, way="die"), "trainer.num_workers=2", epochs=6)
    assert metrics(tmp_path)[-1]["env/worker_restarts"] == 1
    assert max(record["memory/replay_error"] for record in metrics(tmp_path)) < 1e-5


@pytest.mark.parametrize("workers", [0, 2])
def test_no_minibatch_learns_from_an_episode_that_a_failed_environment_cut_off(
    tmp_path, fragile, monkeypatch, workers
) -> None:
    seen: list[list[Minibatch]] = []  # of each epoch
    minibatches = Experience.minibatches

    def recorded(self, *arguments):
        seen.append(list(minibatches(self, *arguments)))
        return iter(seen[-1])

    monkeypatch.setattr(Experience, "minibatches", recorded)
    run(tmp_path, *fragile(times=1), f"trainer.num_workers={workers}", "trainer.update_epochs=1", epochs=6)
    ignored = [[batch.segments[batch.weights[:, step] == 0] for batch in seen[4]] for step in range(8)]
    per_step = [sorted(torch.cat(segments).tolist()) for segments in ignored]
    # The 70th action fails: the 6th of the fifth rollout, the last of an episode that began with its second step.
    restarted = per_step[1]
    assert restarted
    assert all(segment < 6 for segment in restarted)  # the first segment of a row
    assert per_step == [[], *[restarted] * 5, [], []]
    assert all((batch.weights > 0).all() for epoch in (*seen[:4], seen[5]) for batch in epoch)


@pytest.mark.parametrize(
    ("way", "message"), [("raise", "the wheel came off"), ("exit", "SystemExit: 3"), ("bad number", "reward .* is NaN")]
)
def test_after_too_many_failures_a_run_saves_its_last_epoch_and_ends(tmp_path, fragile, way, message) -> None:
    words = (*fragile(times=9, way=way), "trainer.worker_restarts=0", "trainer.checkpoint.interval=10")
    with pytest.raises(EnvError, match=message + r"(.|\n)*resumes from epoch 4\.$") as caught:
        run(tmp_path, *words, epochs=8)
    assert caught.value.exit_code == 1
    (tmp_path / "counter").write_text("x" * 9)
    run(tmp_path, *words, epochs=8)
    assert [record["epoch"] for record in metrics(tmp_path)] == list(range(1, 9))
    assert "resume: environments reset" in log(tmp_path)


def test_a_stop_signal_cuts_a_long_evaluation_short_and_the_epoch_is_saved(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("engram.training.environment.overdue", lambda stopping: stopping)
    words = [*RECALL, *SMALL, "trainer.evaluate_interval=1", f"runs_dir={tmp_path}", "run=x"]
    settings = load([*words, "trainer.evaluate_episodes=1000000000", f"trainer.total_timesteps={BATCH}"])
    prepare_directory(settings)
    result = start(settings, Silent(), interrupted=lambda: True)
    assert result.checkpoint == tmp_path / "x" / "checkpoints" / "epoch_000001"
    assert "epoch 1: its evaluation was cut short by a stop signal" in log(tmp_path)
