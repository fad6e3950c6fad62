"""Environments that fail are built again and begin new episodes; the others do not notice."""

import signal
import time

import numpy as np
import psutil
import pytest
from support.children import children

from engram.env.errors import EnvError
from engram.env.settings import Recall
from engram.env.vector import VectorEnv
from engram.env.workers import local_pool, restarts
from engram.env.workers.restarts import Restarts
from engram.settings import UserError

SHOWN = ("observations", "rewards", "terminals", "truncations", "starts", "alive")


def kill_worker(slot: int) -> None:
    worker = children()[slot]
    worker.kill()
    psutil.wait_procs([worker], 5)


def play(env: VectorEnv, steps: int, before_step=lambda step: None) -> list[dict[str, np.ndarray]]:
    """What every step showed, with one batch."""
    shown = []
    for step in range(steps):
        batch = env.recv()
        fields = {name: getattr(batch.buffers, name).copy() for name in SHOWN}
        shown.append({**fields, "interrupted": batch.interrupted.copy()})
        before_step(step)
        env.send(batch, np.zeros(batch.buffers.actions.shape, np.int64))
    return shown


def test_only_the_rows_of_a_killed_worker_are_interrupted_and_begin_new_episodes():
    recall = Recall(delay=4)
    with VectorEnv(recall, 4) as env:
        env.reset()
        undisturbed = play(env, 12)
    with VectorEnv(recall, 4, 2, num_batches=1, restarts=Restarts(1)) as env:
        env.reset()
        disturbed = play(env, 12, lambda step: kill_worker(1) if step == 3 else None)
        assert env.restarts.count == 1
        assert len(children()) == 2
    for step, (expected, got) in enumerate(zip(undisturbed, disturbed, strict=True)):
        assert got["interrupted"].tolist() == [False, False, step == 4, step == 4]
        for name in SHOWN:
            assert np.array_equal(got[name][:2], expected[name][:2]), (step, name)
    cut = disturbed[4]
    assert cut["starts"][2:].all()
    assert not (cut["terminals"] | cut["truncations"] | (cut["rewards"] != 0))[2:].any()


def test_a_batch_that_the_caller_holds_is_interrupted_with_its_next_step():
    with VectorEnv(Recall(), 4, 1, num_batches=2, restarts=Restarts(1)) as env:
        env.reset()
        first, second = env.recv(), env.recv()
        held = second.buffers.observations.copy()
        kill_worker(0)
        env.send(first, [0, 0])
        assert env.recv().interrupted.all()
        assert np.array_equal(second.buffers.observations, held)
        assert not second.interrupted.any()
        env.send(second, [0, 0])
        assert env.recv().interrupted.all()


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("at", ["step", "reset"])
def test_too_many_failures_within_ten_minutes_are_an_error_that_names_the_setting(num_workers, at, trouble):
    def reset_and_play(env):  # a worker may fail so soon that the reset already notices
        env.reset()
        play(env, 30)

    with VectorEnv(trouble(fault="raise", at=at), 2, num_workers, restarts=Restarts(2)) as env:
        with pytest.raises(EnvError, match=r"the wheel came off(.|\n)*after 2 restarts within 10 minutes") as caught:
            reset_and_play(env)
        assert "trainer.worker_restarts" in str(caught.value)
        assert env.restarts.count == 2
        assert env.closed


def test_failures_long_ago_do_not_count(trouble, monkeypatch):
    monkeypatch.setattr(restarts, "WINDOW_SECONDS", 0.0)
    with VectorEnv(trouble(fault="raise"), 2, restarts=Restarts(1)) as env:
        env.reset()
        play(env, 12)
        assert env.restarts.count > 2


def test_a_hung_worker_is_restarted(trouble):
    with VectorEnv(trouble(fault="hang", env=1), 2, 2, num_batches=1, step_timeout=0.5, restarts=Restarts(1)) as env:
        env.reset()
        shown = play(env, 4)
    assert shown[-1]["interrupted"].tolist() == [False, True]


def test_a_stopped_worker_is_restarted():
    with VectorEnv(Recall(), 2, 2, num_batches=1, step_timeout=0.5, restarts=Restarts(1)) as env:
        env.reset()
        stop = lambda step: children()[0].send_signal(signal.SIGSTOP) if step == 1 else None  # noqa: E731
        assert play(env, 4, stop)[2]["interrupted"].tolist() == [True, False]


def test_a_worker_that_is_stopped_while_its_state_is_saved_is_restarted_after_the_time_of_a_step():
    with VectorEnv(Recall(), 2, 2, num_batches=1, step_timeout=0.5, start_timeout=1e6, restarts=Restarts(1)) as env:
        env.reset()
        play(env, 2)
        batch = env.recv()
        children()[0].send_signal(signal.SIGSTOP)
        assert env.state() is not None
        assert batch.interrupted.tolist() == [True, False]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_mistake_of_the_user_is_not_tried_again(num_workers, trouble):
    with VectorEnv(trouble(fault="refuse"), 2, num_workers, restarts=Restarts(3)) as env:
        env.reset()
        with pytest.raises(UserError, match="no such place"):
            play(env, 9)
        assert env.restarts.count == 0


def test_episodes_of_restarted_environments_have_numbers_that_were_not_used_before(trouble):
    with VectorEnv(trouble(fault="raise", length=2), 1, restarts=Restarts(2)) as env:
        env.reset()
        shown = play(env, 8)
    begun = [int(each["observations"][0, 2]) for each in shown if each["starts"][0]]
    assert begun == sorted(set(begun))
    assert sum(each["interrupted"][0] for each in shown) == 2


def test_a_state_saved_after_a_worker_died_is_restored_exactly():
    recall = Recall(delay=4)
    with VectorEnv(recall, 4, 2, num_batches=1, restarts=Restarts(1)) as env:
        env.reset()
        play(env, 3)
        batch = env.recv()
        kill_worker(0)
        state = env.state()
        assert batch.interrupted.tolist() == [True, True, False, False]
        assert batch.buffers.starts[:2].all()
        env.send(batch, np.zeros(4, np.int64))
        expected = play(env, 6)
    with VectorEnv(recall, 4) as env:
        assert env.restore(state)
        got = play(env, 7)[1:]
    for one, other in zip(expected, got, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in SHOWN)


def test_an_environment_of_this_process_that_hangs_is_named_with_its_location(trouble, monkeypatch):
    monkeypatch.setattr(local_pool, "TICK_SECONDS", 0.01)
    messages: list[str] = []
    with VectorEnv(trouble(fault="slow"), 2, step_timeout=0.05, on_hang=messages.append) as env:
        env.reset()
        play(env, 4)
    text = messages[0]
    assert "env trouble: hangs while stepping environments 0-1" in text
    assert "in _perhaps_fail: time.sleep" in text
    assert "trainer.worker_timeout" in text


def test_fast_environments_and_pauses_between_steps_are_no_hang(monkeypatch):
    monkeypatch.setattr(local_pool, "TICK_SECONDS", 0.01)
    messages: list[str] = []
    with VectorEnv(Recall(), 2, step_timeout=0.3, on_hang=messages.append) as env:
        env.reset()
        play(env, 2)
        time.sleep(0.6)
        play(env, 2)
    assert not messages


def test_no_worker_outlives_its_pool_after_restarts():
    with VectorEnv(Recall(), 2, 1, restarts=Restarts(2)) as env:
        env.reset()
        for _ in range(2):
            kill_worker(0)
            env.recv()
            env.recv()
            env.reset()
    assert not children()
