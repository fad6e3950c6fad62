"""The recall task: observations, rewards, and what random draws depend on."""

import itertools

import numpy as np
import pytest

from engram.config.load import load
from engram.env.block import Buffers, Episodes
from engram.env.recall import block, spec
from engram.env.settings import Recall
from engram.settings import SettingsError


def play(settings, ids=range(64), steps=60, seed=0, act=lambda block, buffers: buffers.actions * 0):
    """Observations, rewards, terminals, truncations and final observations over time, and the episodes."""
    buffers = Buffers.allocate(spec(settings), len(ids))
    played = block(settings, ids, seed, buffers)
    played.reset()
    seen, episodes = [_copy(buffers)], []
    for _ in range(steps):
        buffers.actions[:] = act(played, buffers)
        episodes.append(Episodes.concatenate([played.step()]))
        seen.append(_copy(buffers))
    return {name: np.stack([moment[name] for moment in seen]) for name in seen[0]}, episodes


def _copy(buffers):
    return {name: array.copy() for name, array in buffers.arrays().items()}


class Memory:
    """Remembers the last unmarked cue of every row, and names it."""

    cue = None

    def __call__(self, block, buffers):
        cues = buffers.observations[:, :-2]
        shown = (cues.sum(1) == 1) & (buffers.observations[:, -2] == 0)
        self.cue = np.where(shown, cues.argmax(1), 0 if self.cue is None else self.cue)
        return self.cue


def test_an_episode_is_the_cue_then_blanks_then_the_query():
    seen, _ = play(Recall(cues=3, delay=2), steps=4)
    cue, blank, blank_too, query, next_cue = seen["observations"]
    assert (cue[:, :3].sum(1) == 1).all()
    assert (cue[:, 3:] == 0).all()
    assert not blank.any()
    assert not blank_too.any()
    assert (query == [0, 0, 0, 0, 1]).all()
    assert (next_cue[:, :3].sum(1) == 1).all()


def test_the_query_ends_the_episode_and_gives_the_only_reward():
    seen, episodes = play(Recall(delay=2), act=Memory())
    ends = np.arange(1, 61) % 4 == 0
    assert (seen["terminals"][1:] == ends[:, None]).all()
    assert (seen["rewards"][1:] == ends[:, None]).all()
    assert not seen["truncations"].any()
    assert [len(part) for part in episodes] == [64 * end for end in ends]
    assert all((part.lengths == 4).all() for part in episodes)


def test_starts_are_true_after_a_reset_and_with_the_first_observation_of_each_episode():
    seen, _ = play(Recall(cues=3, delay=1, delay_jitter=1, truncate=0.1))
    shows_cue = (seen["observations"][:, :, :3].sum(2) == 1) & (seen["observations"][:, :, 3] == 0)
    assert (seen["starts"] == shows_cue).all()
    assert (seen["starts"][1:] == (seen["terminals"] | seen["truncations"])[1:]).all()
    assert seen["alive"].all()


@pytest.mark.parametrize("distractors", [0.0, 0.5])
def test_memory_reaches_the_goal_exactly(distractors):
    settings = Recall(delay=3, delay_jitter=2, distractors=distractors)
    _, episodes = play(settings, act=Memory(), steps=100)
    assert Episodes.concatenate(episodes).returns.mean() == spec(settings).mean_return_goal == 1.0


def test_without_memory_the_ceiling_is_chance():
    settings = Recall(cues=4, delay=0)
    _, episodes = play(settings, ids=range(4000), steps=40)
    correct = Episodes.concatenate(episodes).stats["correct"]
    assert spec(settings).memoryless_ceiling == 0.25
    assert abs(correct.mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / len(correct))


def test_the_goal_accounts_for_truncated_episodes():
    settings = Recall(cues=4, delay=3, delay_jitter=2, truncate=0.1)
    _, episodes = play(settings, ids=range(4000), steps=8, act=Memory())
    episodes = Episodes.concatenate(episodes)
    rows, first = np.unique(episodes.rows, return_index=True)  # or short episodes would count more often than long ones
    assert len(rows) == 4000
    goal = spec(settings).mean_return_goal
    assert goal == pytest.approx(np.mean([0.9 ** (delay + 1) for delay in range(1, 6)]))
    assert abs(episodes.returns[first].mean() - goal) < 4 * np.sqrt(goal * (1 - goal) / 4000)


def test_delays_are_sampled_around_the_middle_and_never_negative():
    _, episodes = play(Recall(delay=1, delay_jitter=3), ids=range(500), steps=50)
    lengths, counts = np.unique(Episodes.concatenate(episodes).lengths, return_counts=True)
    assert lengths.tolist() == [2, 3, 4, 5, 6]
    assert counts.min() > 0.7 * counts.max()


def test_distractors_show_a_marked_cue_on_blank_steps_only():
    seen, _ = play(Recall(cues=3, delay=4, distractors=0.5), ids=range(500), steps=5)
    cues, marked = seen["observations"][:, :, :3].sum(2), seen["observations"][:, :, 3]
    assert not marked[[0, 5]].any()
    assert (cues[1:5] == marked[1:5]).all()
    assert abs(marked[1:5].mean() - 0.5) < 0.05


def test_a_truncated_episode_keeps_its_next_observation_as_the_final_one():
    whole, _ = play(Recall(delay=5, distractors=0.5), ids=range(300), steps=6)
    seen, _ = play(Recall(delay=5, distractors=0.5, truncate=0.1), ids=range(300), steps=6)
    for row in range(300):
        cuts = np.flatnonzero(seen["truncations"][:, row])
        if len(cuts):  # until its first cut a row is the same as one that is never cut
            first = cuts[0]
            assert (seen["final_observations"][first, row] == whole["observations"][first, row]).all()
            assert (seen["observations"][:first, row] == whole["observations"][:first, row]).all()
    assert seen["truncations"].sum() > 50
    assert not (seen["truncations"] & seen["terminals"]).any()


def test_truncated_episodes_have_no_correct_stat():
    _, episodes = play(Recall(delay=5, truncate=0.2), act=Memory())
    episodes = Episodes.concatenate(episodes)
    correct = episodes.stats["correct"]
    assert np.isnan(correct).any()
    assert (correct[~np.isnan(correct)] == 1).all()
    assert (episodes.returns[np.isnan(correct)] == 0).all()


def test_a_row_does_not_depend_on_its_block():
    settings = Recall(delay=2, delay_jitter=2, distractors=0.3, truncate=0.1)
    whole, _ = play(settings, range(20), seed=5)
    part, _ = play(settings, range(7, 12), seed=5)
    other, _ = play(settings, range(7, 12), seed=6)
    assert all((whole[name][:, 7:12] == part[name]).all() for name in whole)
    assert not all((other[name] == part[name]).all() for name in whole)


@pytest.mark.parametrize("at", range(12))
def test_a_restored_block_resumes_exactly(at):
    settings = Recall(delay=2, delay_jitter=1, distractors=0.3, truncate=0.1)
    one, other = (Buffers.allocate(spec(settings), 9) for _ in range(2))
    first = block(settings, range(9), 1, one)
    first.reset()
    for _ in range(at):
        first.step()
    second = block(settings, range(9), 1, other)
    assert second.restore(first.state())
    assert (one.observations == other.observations).all()
    assert (one.starts == other.starts).all()
    for _, played in itertools.product(range(12), (first, second)):
        played.step()
    assert (one.observations == other.observations).all()
    assert (one.starts == other.starts).all()


@pytest.mark.parametrize("name", ["delay", "delay_jitter"])
def test_delays_are_bounded(name) -> None:
    with pytest.raises(SettingsError, match="100000"):
        load(["env=recall", f"env.{name}=1_000_000_000_000"])
