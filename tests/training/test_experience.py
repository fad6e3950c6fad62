"""Experience: rows that fill on their own, sizes that divide, and what is sampled."""

import pytest
import torch
from tensordict import TensorDict

from engram import Experience
from engram.training.advantage import Advantages, compute_advantages
from engram.training.settings import PPO

ROWS, HORIZON = 4, 3


def make(segments_per_row: int = 2, minibatch_segments: int = 2, burn_in: int = 0) -> Experience:
    spec = TensorDict({"env_obs": torch.zeros(2), "actions": torch.zeros((), dtype=torch.long)})
    return Experience(
        total_agents=ROWS,
        batch_size=ROWS * HORIZON * segments_per_row,
        bptt_horizon=HORIZON,
        minibatch_size=minibatch_segments * HORIZON,
        experience_spec=spec,
        memory_shapes={"lstm": (2, 5)},
        burn_in=burn_in,
    )


def judged(advantages: torch.Tensor) -> Advantages:
    return Advantages(advantages, torch.zeros_like(advantages))


def step_td(rows: slice, step: int, **fields: float) -> TensorDict:
    count = rows.stop - rows.start
    ids = torch.arange(rows.start, rows.stop).float()
    td = TensorDict(
        {
            "env_obs": torch.stack([ids, torch.full_like(ids, step)], 1),
            "actions": torch.full((count,), step),
            "rewards": torch.full((count,), float(step)),
            "values": ids,
            "act_log_prob": -ids,
            "dones": torch.zeros(count, dtype=torch.bool),
            "truncateds": torch.zeros(count, dtype=torch.bool),
            "alive": torch.ones(count, dtype=torch.bool),
            "final_values": torch.zeros(count),
            "not_stored": torch.ones(count),
        },
        [count],
    )
    return td.update({name: torch.full((count,), value) for name, value in fields.items()})


def fill(experience: Experience, parts: list[slice]) -> None:
    experience.begin()
    for rows in parts:
        for step in range(experience.steps_per_row):
            if step % HORIZON == 0:
                ids = torch.arange(rows.start, rows.stop).float()
                experience.store_memory({"lstm": (ids + 100 * step).view(-1, 1, 1).expand(-1, 2, 5)}, rows)
            experience.store(step_td(rows, step), rows)
        experience.store_bootstrap(step_td(rows, experience.steps_per_row), rows)


def test_burn_in_steps_have_no_weight() -> None:
    experience = make(burn_in=2)
    fill(experience, [slice(0, ROWS)])
    for minibatch in experience.minibatches(judged(torch.zeros(experience.segments, HORIZON)), torch.Generator()):
        assert minibatch.weights.tolist() == [[0, 0, 1], [0, 0, 1]]
        assert minibatch.size == 2


@pytest.mark.parametrize(("parts", "sizes"), [(1, [5]), (2, [3, 2]), (3, [2, 2, 1]), (5, [1] * 5), (9, [1] * 5)])
def test_a_minibatch_splits_into_parts_that_cover_it(parts: int, sizes: list[int]) -> None:
    experience = make(5, 5)
    fill(experience, [slice(0, ROWS)])
    minibatch = next(experience.minibatches(judged(torch.rand(experience.segments, HORIZON)), torch.Generator()))
    cut = minibatch.split(parts)
    assert [len(part.segments) for part in cut] == sizes
    assert torch.equal(torch.cat([part.advantages for part in cut]), minibatch.advantages)
    assert torch.equal(torch.cat([part.memory["lstm"] for part in cut]), minibatch.memory["lstm"])
    assert torch.equal(torch.cat([part.data["env_obs"] for part in cut]), minibatch.data["env_obs"])


def test_rows_fill_in_any_order_and_slices_of_any_size() -> None:
    together, apart = make(), make()
    fill(together, [slice(0, 4)])
    fill(apart, [slice(2, 3), slice(3, 4), slice(0, 2)])
    assert apart.full
    for name in together.buffer.keys():  # noqa: SIM118
        assert torch.equal(together.buffer[name], apart.buffer[name])
    assert torch.equal(together.memory["lstm"], apart.memory["lstm"])


def test_a_segment_holds_consecutive_steps_of_one_row_and_the_memory_it_began_with() -> None:
    experience = make()
    fill(experience, [slice(0, 4)])
    second_of_row_1 = experience.buffer["env_obs"][ROWS + 1]
    assert second_of_row_1.tolist() == [[1, 3], [1, 4], [1, 5]]
    assert (experience.memory["lstm"][ROWS + 1] == 1 + 100 * 3).all()


def test_only_known_fields_are_kept() -> None:
    experience = make()
    fill(experience, [slice(0, 4)])
    assert "not_stored" not in experience.buffer.keys()  # noqa: SIM118


def test_it_is_full_when_every_row_has_its_bootstrap_value() -> None:
    experience = make(1)
    experience.begin()
    for step in range(HORIZON):
        experience.store(step_td(slice(0, 4), step), slice(0, 4))
    assert not experience.full
    with pytest.raises(ValueError, match="full"):
        experience.store(step_td(slice(0, 4), 9), slice(0, 4))
    experience.store_bootstrap(step_td(slice(0, 4), HORIZON), slice(0, 4))
    assert experience.full


def test_the_reward_of_a_step_arrives_with_the_next_observation() -> None:
    experience = make()
    fill(experience, [slice(0, 4)])
    result = compute_advantages(experience, PPO(gamma=0.5, gae_lambda=0.0, norm_adv=False))
    # row 2: value 2 everywhere, so delta[t] = reward[t + 1] + 0.5 * 2 - 2 = t + 1 - 1
    assert result.advantages[2].tolist() == [0, 1, 2]
    assert result.advantages[ROWS + 2].tolist() == [3, 4, 5]
    assert torch.equal(experience.buffer["returns"], result.returns)


def test_termination_stops_the_bootstrap_and_truncation_uses_the_final_value() -> None:
    results = {}
    for name, fields in {"terminated": {"dones": True}, "truncated": {"truncateds": True, "final_values": 8.0}}.items():
        experience = make(1)
        experience.begin()
        for step in range(HORIZON):
            experience.store(step_td(slice(0, 4), step, **(fields if step == 1 else {})), slice(0, 4))
        experience.store_bootstrap(step_td(slice(0, 4), HORIZON), slice(0, 4))
        results[name] = (
            compute_advantages(experience, PPO(gamma=0.5, gae_lambda=0.9, norm_adv=False)).advantages[2, 0].item()
        )
    assert results["terminated"] == 1 - 2
    assert results["truncated"] == 1 + 0.5 * 8 - 2


def test_without_priorities_every_segment_comes_once_a_pass() -> None:
    experience = make()
    fill(experience, [slice(0, 4)])
    seen = torch.cat([m.segments for m in experience.minibatches(judged(torch.ones(8, HORIZON)), torch.Generator())])
    assert sorted(seen.tolist()) == list(range(8))


def test_minibatches_carry_the_data_and_memory_of_their_segments() -> None:
    experience = make()
    fill(experience, [slice(0, 4)])
    advantages = torch.arange(8.0).unsqueeze(1).expand(8, HORIZON)
    for minibatch in experience.minibatches(judged(advantages), torch.Generator()):
        rows = minibatch.segments % ROWS
        assert torch.equal(minibatch.data["env_obs"][:, 0, 0], rows.float())
        assert torch.equal(minibatch.memory["lstm"][:, 0, 0] % 100, rows.float())
        assert torch.equal(minibatch.advantages[:, 0], minibatch.segments.float())


def test_priorities_prefer_large_advantages_and_importance_weights_correct_the_bias() -> None:
    experience = make(minibatch_segments=1)
    fill(experience, [slice(0, 4)])
    advantages = torch.full((8, HORIZON), 0.1)
    advantages[5] = 10.0
    generator = torch.Generator().manual_seed(0)
    drawn = [m for _ in range(50) for m in experience.minibatches(judged(advantages), generator, 1.0, 1.0)]
    share = sum(m.segments.item() == 5 for m in drawn) / len(drawn)
    assert share > 0.8
    wide = make(minibatch_segments=4)
    fill(wide, [slice(0, 4)])
    minibatch = next(iter(wide.minibatches(judged(advantages), generator, 1.0, 1.0)))
    is_five = minibatch.segments == 5
    assert (minibatch.weights[is_five] < minibatch.weights[~is_five].min()).all()
    assert minibatch.weights.max() == 1


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((4, 30, 3, 6), "batch_size: 30 is not a multiple of .*: try 24 or 36"),
        ((4, 24, 3, 7), "minibatch_size: 7 is not a multiple of .*: try 6 or 9"),
        ((4, 24, 3, 9), "minibatch_size: 9 does not divide .*: try 6 or 12"),
        ((4, 5, 3, 3), "batch_size: 5 .*: try 12"),
    ],
)
def test_sizes_that_do_not_divide_name_sizes_that_do(sizes: tuple[int, int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Experience(*sizes, experience_spec=TensorDict({}))
