"""Workers that die, hang, raise or lose their parent: one clear error, and nothing left behind."""

import gc
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from support.children import children

from engram.env.errors import EnvError
from engram.env.settings import Recall
from engram.env.vector import VectorEnv
from engram.env.workers.worker_pool import WorkerError
from engram.settings import UserError

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """No process, no file descriptor and no shared memory outlives a test."""
    before = _files(), _children()
    yield
    assert (_files(), _children()) == before


def _files():
    gc.collect()  # an exception may keep an environment, and its memory, until now
    kinds = [
        os.readlink(f"/proc/self/fd/{file}").split(":")[0] for file in os.listdir("/proc/self/fd") if _is_open(file)
    ]
    return sorted(kind for kind in kinds if kind in ("pipe", "socket", "/memfd", "anon_inode"))


def _is_open(file):
    return os.path.lexists(f"/proc/self/fd/{file}")


def _children():
    return [child.pid for child in children(recursive=True)]


def step(env, times=1):
    for _ in range(times * len(env.batches)):
        batch = env.recv()
        env.send(batch, np.zeros(batch.buffers.actions.shape, np.int64))


def play(settings, num_workers):
    with VectorEnv(settings, 2, num_workers=num_workers) as env:
        env.reset()
        step(env, 9)


def test_a_killed_worker_is_named_with_its_signal_and_what_it_did():
    with VectorEnv(Recall(), 4, num_workers=2) as env:
        env.reset()
        step(env, 3)
        os.kill(_children()[1], signal.SIGKILL)
        with pytest.raises(
            WorkerError, match=r"^env recall: worker 1 of 2 died while \w+( with)? environments? .*SIGKILL"
        ):
            step(env, 50)
        assert _children() == []
        with pytest.raises(RuntimeError, match="is closed"):
            env.recv()


def test_a_worker_killed_while_it_waits_is_noticed_at_the_next_step():
    with VectorEnv(Recall(), 4, num_workers=1) as env:
        env.reset()
        batches = env.recv(), env.recv()
        child = psutil.Process(_children()[0])
        child.kill()
        assert are_gone([child])
        with pytest.raises(WorkerError, match=r"worker 0 of 1 died while stepping .* killed by SIGKILL"):
            env.send(batches[0], [0, 0])


def test_an_environment_that_exits_is_named_with_its_exit_code(trouble):
    with VectorEnv(trouble(fault="exit", env=2), 4, num_workers=2, num_batches=1) as env:
        env.reset()
        with pytest.raises(
            WorkerError, match="env trouble: worker 1 of 2 died while stepping environments 2-3: it exited with code 3"
        ):
            step(env, 9)


def test_the_only_worker_may_exit_too(trouble):
    with pytest.raises(WorkerError, match=r"worker 0 of 1 died while stepping environment.*: it exited with code 3"):
        play(trouble(fault="exit"), num_workers=1)


def test_an_environment_that_raises_is_reported_with_its_location(trouble):
    with VectorEnv(trouble(fault="raise", env=2), 3, num_workers=2) as env:
        env.reset()
        with pytest.raises(WorkerError) as caught:
            step(env, 9)
    text = str(caught.value)
    where = r"env trouble: worker [01] of 2 failed while stepping environment 2: "  # which one has it is the machine's
    assert re.match(where + "ArithmeticError: the wheel came off", text)
    assert "trouble.py" in text
    assert "in _perhaps_fail: raise ArithmeticError" in text
    assert caught.value.exit_code == 1
    assert _children() == []


@pytest.mark.parametrize(("at", "doing"), [("build", "building"), ("reset", "resetting")])
def test_an_environment_that_cannot_start_is_reported(at, doing, trouble):
    with pytest.raises(WorkerError, match=f"worker 0 of 1 failed while {doing} environments? 0.*the wheel came off"):
        play(trouble(fault="raise", at=at), num_workers=1)


def test_a_user_error_keeps_its_message(trouble):
    with pytest.raises(UserError, match=r"^trouble.env: no such place$"):
        VectorEnv(trouble(fault="refuse", at="build"), 1)
    with pytest.raises(WorkerError, match=r"while building environment 0: trouble.env: no such place$"):
        VectorEnv(trouble(fault="refuse", at="build"), 1, num_workers=1)


@pytest.mark.parametrize("at", ["build", "reset", "step"])
def test_without_workers_the_error_says_the_same_and_keeps_its_cause(at, trouble):
    with pytest.raises(
        EnvError, match=r"^env trouble: failed while \w+ing environments 0-1: ArithmeticError"
    ) as caught:
        play(trouble(fault="raise", at=at), num_workers=0)
    assert isinstance(caught.value.__cause__, ArithmeticError)


def test_a_stopped_worker_is_noticed_and_ended():
    with VectorEnv(Recall(), 4, num_workers=2, step_timeout=1.0) as env:
        env.reset()
        step(env, 2)
        os.kill(_children()[0], signal.SIGSTOP)
        with pytest.raises(WorkerError, match=r"worker 0 of 2 hangs while stepping .* no reply for 1 s.*step_timeout"):
            step(env, 99)
        assert _children() == []


def test_an_environment_that_hangs_is_noticed_and_ended(trouble):
    with VectorEnv(trouble(fault="hang", env=1), 2, num_workers=2, num_batches=1, step_timeout=1.0) as env:
        env.reset()
        with pytest.raises(WorkerError) as caught:
            step(env, 9)
        assert _children() == []
    assert str(caught.value) == (
        "env trouble: worker 1 of 2 hangs while stepping environment 1: no reply for 1 s. If the environment is only "
        "slow, raise the timeout (trainer.worker_timeout, or VectorEnv's step_timeout)."
    )


def test_an_environment_that_hangs_while_building_names_the_start_timeout(trouble):
    with pytest.raises(WorkerError, match=r"hangs while building .* raise the timeout \(VectorEnv's start_timeout\)"):
        VectorEnv(trouble(fault="hang", at="build"), 1, num_workers=1, start_timeout=1.0)


def test_a_large_state_cannot_block_on_a_stopped_worker():
    with VectorEnv(Recall(cues=64), 40_000, num_workers=1, step_timeout=1.0) as env:
        env.reset()
        state = env.state()
        os.kill(_children()[0], signal.SIGSTOP)
        with pytest.raises(WorkerError, match="worker 0 of 1 hangs while restoring"):
            env.restore(state)


def test_pausing_parent_and_workers_is_not_a_timeout():
    """Ctrl-Z and fg: time has passed, but no worker had a chance to answer."""
    process, workers = parent("slow", step_timeout=2.0)
    process.stdout.readline()
    members = [psutil.Process(process.pid), *workers]
    for member in members:
        member.suspend()
    time.sleep(2.2)
    for member in members:
        member.resume()
        time.sleep(0.1)  # the parent first: it finds that its time is up
    assert [process.stdout.readline() for _ in range(3)] == ["running\n"] * 3
    process.kill()
    end(process)
    assert are_gone(workers)


def test_closing_ends_a_stopped_worker_too():
    with VectorEnv(Recall(), 2, num_workers=2):
        os.kill(_children()[1], signal.SIGSTOP)
    assert _children() == []


def test_an_unreferenced_environment_ends_its_workers():
    VectorEnv(Recall(), 2, num_workers=1).reset()
    assert _children() == []


def test_workers_have_one_thread_and_no_torch(trouble):
    with VectorEnv(trouble(), 2, num_workers=1):
        worker = psutil.Process(_children()[0])
        assert {worker.environ()[name] for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")} == {"1"}
        assert worker.num_threads() == 1
        assert not any("torch" in mapped.path for mapped in worker.memory_maps())


def test_shared_memory_has_no_name():
    with VectorEnv(Recall(), 2, num_workers=1):
        mapped = {part.path for part in psutil.Process(_children()[0]).memory_maps()}
        assert any("memfd:engram" in path for path in mapped)
        assert not any(path.startswith("/dev/shm") for path in mapped)


SCRIPT = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, where tests run in the background
sys.path.insert(0, {fakes!r})
from engram.env.registry import ADAPTERS
ADAPTERS["trouble"] = "trouble"
from trouble import Trouble
from engram.env.vector import VectorEnv
import psutil
env = VectorEnv(Trouble(fault={fault!r}, env=1), 2, num_workers=2, num_batches=1, step_timeout={step_timeout})
env.reset()
print(*[child.pid for child in psutil.Process().children()], flush=True)
while True:
    batch = env.recv()
    env.send(batch, [0, 0])
    if batch.buffers.observations[0, 2] >= 1:
        print("running", flush=True)
"""


def parent(fault, step_timeout=100.0):
    """A process with two workers, without a main guard, that steps them for ever; and the workers."""
    code = SCRIPT.format(fakes=str(ROOT / "tests/env/fakes"), fault=fault, step_timeout=step_timeout)
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    workers = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
    assert len(workers) == 2
    return process, workers


def end(process):
    """Wait for it; its errors."""
    _, errors = process.communicate(timeout=90)
    return errors


def are_gone(workers):
    deadline = time.monotonic() + 10
    while any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize("fault", ["none", "hang"])
def test_workers_die_with_a_parent_that_is_killed(fault):
    process, workers = parent(fault)
    if fault == "hang":
        time.sleep(0.5)  # a worker sleeps in a step, and the other one does not even run
        workers[0].suspend()
    process.kill()
    end(process)
    assert are_gone(workers)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_workers_end_silently_with_an_interrupted_or_terminated_parent(sign):
    process, workers = parent("none")
    process.stdout.readline()
    os.killpg(process.pid, sign)  # as Ctrl-C in a terminal does
    errors = end(process)
    assert are_gone(workers)
    assert errors.count("Traceback") == (1 if sign == signal.SIGINT else 0)  # the parent's own KeyboardInterrupt
    assert "worker.py" not in errors


def test_workers_ignore_an_interrupt_of_their_own():
    with VectorEnv(Recall(), 2, num_workers=1) as env:
        env.reset()
        os.kill(_children()[0], signal.SIGINT)
        step(env, 20)
