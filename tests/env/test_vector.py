"""The vectorised environment: rows, batches, episodes and states, whatever the number of workers."""

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram.env.errors import EnvError
from engram.env.settings import Recall
from engram.env.vector import VectorEnv
from engram.env.workers.pool import share_out, split
from engram.settings import UserError

RECALL = Recall(delay=2, delay_jitter=2, distractors=0.3, truncate=0.1)
SEEN = ("observations", "rewards", "terminals", "truncations", "starts", "alive")


class Played:
    """Plays an environment with actions that depend on row and time only, and keeps what every row saw."""

    def __init__(self, env, count=None, first=0):
        self.env, self.first = env, first
        self.count = np.zeros(env.rows, int) if count is None else count.copy()
        self.seen = [[] for _ in range(env.rows)]

    def turn(self):
        batch = self.env.recv()
        rows = np.arange(batch.rows.start, batch.rows.stop)
        for place, row in enumerate(rows):
            data = b"".join(getattr(batch.buffers, name)[place].tobytes() for name in SEEN)
            cut = batch.buffers.truncations[place]
            self.seen[row].append(data + (batch.buffers.final_observations[place].tobytes() if cut else b""))
        self.env.send(batch, ((self.first + rows) * 7 + self.count[rows] * 3) % 4)
        self.count[rows] += 1

    def play(self, steps):
        """Each batch `steps` times."""
        for _ in range(steps * len(self.env.batches)):
            self.turn()
        return self


def listed(episodes):
    stats = {name: np.nan_to_num(values, nan=-1).tolist() for name, values in episodes.stats.items()}
    return episodes.rows.tolist(), episodes.returns.tolist(), episodes.lengths.tolist(), stats


def started(*arguments, **options):
    env = VectorEnv(*arguments, **options)
    env.reset()
    return env


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 12), st.booleans())
def test_every_environment_is_in_one_share_and_workers_have_equal_shares(num_envs, num_batches, num_workers, separate):
    num_batches, num_workers = min(num_batches, num_envs), min(num_workers, num_envs)
    groups = split(range(num_envs), num_batches)
    shares = share_out(groups, num_workers, separate)
    assert [i for ids in groups for i in ids] == list(range(num_envs))
    assert [i for group in shares for _, ids in group for i in ids] == list(range(num_envs))
    held = [sum(len(ids) for group in shares for worker, ids in group if worker == w) for w in range(num_workers)]
    assert max(held) - min(held) <= 1
    assert all(len({worker for worker, _ in group}) == len(group) for group in shares)
    if separate and num_workers % num_batches == 0:
        assert sum(len({worker for worker, _ in group}) for group in shares) <= num_workers  # none is in two groups
    else:
        assert [len(group) for group in shares] == [min(num_workers, len(ids)) for ids in groups]


def test_batches_are_whole_environments_in_order(trouble):
    with VectorEnv(trouble(agents=3), num_envs=5, num_batches=2) as env:
        assert env.rows == 15
        assert env.batches == [slice(0, 9), slice(9, 15)]
    with VectorEnv(trouble(), num_envs=2, num_batches=9) as env:
        assert len(env.batches) == 2


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_rows_see_the_same_whatever_the_number_of_workers(num_workers):
    with started(RECALL, 7, num_workers=num_workers, seed=4) as env, started(RECALL, 7, seed=4) as alone:
        assert Played(env).play(60).seen == Played(alone).play(60).seen
        assert listed(env.drain_episodes()) == listed(alone.drain_episodes())


@pytest.mark.parametrize("num_batches", [2, 3, 7])
def test_rows_see_the_same_whatever_the_number_of_batches(num_batches):
    with started(RECALL, 7, num_batches=num_batches) as env, started(RECALL, 7) as alone:
        assert Played(env).play(60).seen == Played(alone).play(60).seen
        assert listed(env.drain_episodes()) == listed(alone.drain_episodes())


def test_a_different_seed_gives_different_data():
    with started(RECALL, 7, seed=1) as env, started(RECALL, 7, seed=2) as other:
        assert Played(env).play(20).seen != Played(other).play(20).seen


def test_more_workers_than_environments_do_no_harm(trouble):
    with started(trouble(agents=2), 2, num_workers=3) as env, started(trouble(agents=2), 2) as alone:
        assert Played(env).play(20).seen == Played(alone).play(20).seen


def test_episodes_come_by_step_and_row(trouble):
    with started(trouble(agents=2, length=2), 4, num_batches=3) as env:
        Played(env).play(5)
        rows, _, lengths, stats = listed(env.drain_episodes())
        assert rows == [0, 1, 2, 3, 0, 1, 4, 5]
        assert lengths == [2, 2, 3, 3, 2, 2, 4, 4]
        assert stats == {"odd": [0, 0, 1, 1, 0, 0, 0, 0]}
        assert len(env.drain_episodes()) == 0


def test_episodes_come_by_step_even_if_one_batch_is_ahead(trouble):
    with started(trouble(), 2, num_batches=2) as env:
        held = env.recv()
        for _ in range(5):
            other = env.recv()
            env.send(other, [0])
        for _ in range(4):
            env.send(held, [0])
            env.recv(), env.recv()
            env.send(other, [0])
        assert env.drain_episodes().rows.tolist() == [0, 1, 1]


def test_a_truncated_row_has_its_true_last_observation_beside_the_first_of_the_next_episode(trouble):
    with started(trouble(), 2, num_workers=1, num_batches=1) as env:
        Played(env).play(4)
        buffers = env.recv().buffers  # environment 1 has just been cut off after 4 steps
        assert buffers.truncations.tolist() == [False, True]
        assert buffers.final_observations[1].tolist() == [1, 0, 0, 4]
        assert buffers.observations[1].tolist() == [1, 0, 1, 0]
        assert buffers.starts.tolist() == [False, True]


def test_batches_may_be_sent_in_any_order_and_come_back_in_that_order():
    with started(RECALL, 6, num_workers=2, num_batches=3) as env:
        batches = [env.recv() for _ in range(3)]
        assert [batch.rows.start for batch in batches] == [0, 2, 4]
        for number in (2, 0, 1):
            env.send(batches[number].rows, np.zeros(2, np.int64))
        assert [env.recv().rows.start for _ in range(3)] == [4, 0, 2]


def test_a_slow_batch_is_waited_for(trouble, monkeypatch):
    monkeypatch.setattr("engram.env.workers.pool.available_cores", lambda: 1)  # each batch has its own workers
    with started(trouble(fault="slow", env=0, after=0), 4, num_workers=2, num_batches=2) as env:
        received = []
        for _ in range(6):
            batch = env.recv()
            received.append(batch.rows.start)
            env.send(batch, [0, 0])
        assert received == [0, 2, 0, 2, 0, 2]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_held_batch_does_not_change_while_others_step(num_workers):
    with started(RECALL, 6, num_workers=num_workers, num_batches=3) as env:
        held = env.recv()
        before = {name: getattr(held.buffers, name).copy() for name in SEEN}
        for _ in range(20):
            env.send(env.recv(), np.zeros(2, np.int64))
        assert held.rows.start == 0
        assert all((getattr(held.buffers, name) == before[name]).all() for name in SEEN)
        env.send(held, np.zeros(2, np.int64))
        assert [env.recv().rows.start for _ in range(3)][-1] == 0


def test_reset_in_the_middle_begins_new_episodes_everywhere(trouble):
    with started(trouble(), 4, num_workers=2) as env:
        Played(env).play(3)
        env.recv()
        env.reset()
        for _ in env.batches:
            buffers = env.recv().buffers
            assert buffers.starts.all()
            assert (buffers.observations[:, 3] == 0).all()
        assert env.drain_episodes().rows.tolist() == [0]  # it ended in a step that was not received before the reset


@pytest.mark.parametrize(("count", "options"), [("num_envs", {"num_envs": 0}), ("num_workers", {"num_workers": -1})])
def test_impossible_numbers_are_refused(count, options):
    with pytest.raises(UserError, match=f"^{count}: .* must be at least"):
        VectorEnv(RECALL, **({"num_envs": 1} | options))


def test_misuse_raises_with_the_remedy():
    env = VectorEnv(RECALL, 4, num_batches=2)
    with pytest.raises(RuntimeError, match=r"reset\(\) first"):
        env.recv()
    with pytest.raises(RuntimeError, match="no state before"):
        env.state()
    env.reset()
    with pytest.raises(RuntimeError, match="rows 0:2 were not received"):
        env.send(slice(0, 2), [0, 0])
    batch = env.recv()
    with pytest.raises(ValueError, match=r"rows 1:3 are not a batch .* its batches are 0:2, 2:4"):
        env.send(slice(1, 3), [0, 0])
    with pytest.raises(ValueError, match=r"shape \(3,\) were sent; this batch takes shape \(2,\)"):
        env.send(batch, [0, 0, 0])
    with pytest.raises(ValueError, match="actions of float64 were sent; this environment takes int32"):
        env.send(batch, [0.0, 0.0])
    env.recv()
    with pytest.raises(RuntimeError, match="every batch was received"):
        env.recv()
    env.send(batch, [0, 0])
    env.close()
    env.close()
    with pytest.raises(RuntimeError, match="is closed"):
        env.recv()


def test_an_unknown_kind_is_refused_with_the_known_ones(trouble):
    with pytest.raises(UserError, match="unknown kind 'chess'; expected one of arena, gym, "):
        VectorEnv(trouble.model_construct(kind="chess"), 1)


def test_an_unreferenced_environment_is_closed():
    env = VectorEnv(RECALL, 2)
    pool, gone = env._pool, weakref.ref(env)
    del env
    gc.collect()
    assert gone() is None
    assert pool.closed


@pytest.mark.parametrize("cut", range(40))
@pytest.mark.parametrize("kind", ["recall", "trouble"])
def test_a_restored_environment_resumes_exactly(kind, cut, trouble):
    settings = RECALL if kind == "recall" else trouble(agents=2)
    with started(settings, 5, num_batches=2) as env, VectorEnv(settings, 5, num_batches=3) as other:
        played = Played(env)
        for _ in range(cut):
            played.turn()
        state = env.state()
        played.seen = [[] for _ in range(env.rows)]
        later = Played(other, played.count)
        assert other.restore(state)
        later.play(10)
        played.play(11)
        for expected, got in zip(played.seen, later.seen, strict=True):
            assert got == expected[: len(got)]


@pytest.mark.parametrize(("before", "after"), [(2, 0), (0, 3), (2, 1)])
def test_states_pass_between_any_numbers_of_workers(before, after, trouble):
    settings = trouble(agents=2)
    with started(settings, 5, num_workers=before) as env, VectorEnv(settings, 5, num_workers=after) as other:
        played = Played(env).play(6)
        env.drain_episodes()
        state = env.state()
        later = Played(other, played.count)
        played.seen = [[] for _ in range(env.rows)]
        assert other.restore(state)
        assert later.play(12).seen == played.play(12).seen
        assert listed(other.drain_episodes()) == listed(env.drain_episodes())


def test_a_state_keeps_the_order_of_batches_and_unreceived_episodes(trouble):
    with started(trouble(), 4, num_batches=2) as env, VectorEnv(trouble(), 4, num_batches=2) as other:
        Played(env).play(2)
        first, second = env.recv(), env.recv()
        env.send(second, [1, 1])
        env.send(first, [1, 1])  # here environment 0's episode ends
        state = env.state()
        assert len(env.drain_episodes()) == 0
        assert other.restore(state)
        assert [other.recv().rows, other.recv().rows] == [second.rows, first.rows] == [env.recv().rows, env.recv().rows]
        assert listed(other.drain_episodes()) == listed(env.drain_episodes()) == ([0], [4.0], [3], {"odd": [0]})


def test_restored_episodes_are_ordered_by_the_step_they_ended_in(trouble):
    with started(trouble(), 2) as env, VectorEnv(trouble(), 2, num_batches=2) as other:
        Played(env).play(9)
        assert other.restore(env.state())
        env.recv()  # the state knows of this step
        kept, restored = listed(env.drain_episodes()), listed(other.drain_episodes())
        assert kept[0] == [0, 1, 0, 1, 0]
        assert restored == kept


def test_taking_a_state_changes_nothing():
    with started(RECALL, 5, num_batches=2) as env, started(RECALL, 5, num_batches=2) as other:
        played, undisturbed = Played(env), Played(other)
        for _ in range(30):
            played.turn()
            undisturbed.turn()
            env.state()
            assert listed(env.drain_episodes()) == listed(other.drain_episodes())
        assert played.seen == undisturbed.seen


def test_an_environment_without_exact_replay_has_no_state(trouble):
    for num_workers in (0, 1):
        with started(trouble(exact=False), 2, num_workers=num_workers) as env:
            assert env.state() is None
            Played(env).play(3)


def test_a_state_of_a_different_environment_is_refused_without_side_effects():
    with started(RECALL, 4) as env, started(RECALL, 4) as same:
        for other in (VectorEnv(RECALL, 5), VectorEnv(RECALL, 4, seed=1), VectorEnv(Recall(cues=3), 4)):
            other.reset()
            assert not env.restore(other.state())
        assert Played(env).play(5).seen == Played(same).play(5).seen


def test_different_observations_after_a_replay_are_noticed_and_a_reset_recovers():
    with started(RECALL, 4) as env:
        state = env.state()
        state["buffers.observations"][2, 0] += 1
        assert not env.restore(state)
        with pytest.raises(RuntimeError, match=r"reset\(\) first"):
            env.recv()
        env.reset()
        Played(env).play(3)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_two_vectorised_environments_can_split_one_numbering(num_workers):
    with (
        started(RECALL, 6, seed=4) as whole,
        started(RECALL, 4, seed=4, num_workers=num_workers) as left,
        started(RECALL, 2, seed=4, num_workers=num_workers, first_env=4) as right,
    ):
        parts = Played(left).play(40).seen + Played(right, first=4).play(40).seen
        assert parts == Played(whole).play(40).seen


def test_an_environment_that_fails_is_named_by_its_id(trouble):
    with VectorEnv(trouble(fault="raise", env=5), 3, first_env=4) as env:
        env.reset()
        with pytest.raises(EnvError, match="environments 4-6: "):
            Played(env).play(9)
