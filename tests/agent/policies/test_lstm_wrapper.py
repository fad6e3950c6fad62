"""LSTMWrapper: memory that a policy's author never has to think about."""

import warnings

import pytest
import torch
from gymnasium import spaces
from support.playing import play, random_observations, replay, replay_difference, vector_env
from tensordict import TensorDict
from torch import Tensor, nn

from engram import LSTMWrapper
from engram.agent.recurrent import CORES


class Small(LSTMWrapper):
    """Only encodes and decodes."""

    def __init__(self, env, hidden_size=16, **kwargs):
        super().__init__(env, input_size=12, hidden_size=hidden_size, **kwargs)
        self.encoder = nn.Linear(self.env_spec.single_observation_space.shape[0], 12)
        self.actor = nn.Linear(hidden_size, self.action_space.logits)
        self.critic = nn.Linear(hidden_size, 1)

    def encode_observations(self, observations):
        return self.encoder(observations).relu()

    def decode_actions(self, hidden):
        return self.actor(hidden), self.critic(hidden)


class OwnForward(Small):
    """Its own forward, with the two building blocks and a flattened td."""

    def forward(self, td, state=None, action=None):
        observations = td["env_obs"]
        B, TT = observations.shape[0], 1 if action is None else observations.shape[1]
        if td.batch_dims > 1:
            td = td.reshape(td.batch_size.numel())
        td.set("bptt", torch.full((B * TT,), TT, dtype=torch.long))
        td.set("batch", torch.full((B * TT,), B, dtype=torch.long))
        hidden = self.encode_observations(td["env_obs"])
        lstm_h, lstm_c, env_id = self._manage_lstm_state(td, B, TT, observations.device)
        hidden = hidden.view(B, TT, -1).transpose(0, 1)
        hidden, (new_h, new_c) = self.lstm(hidden, (lstm_h, lstm_c))
        self._store_lstm_state(new_h, new_c, env_id)
        logits, value = self.decode_actions(hidden.transpose(0, 1).reshape(B * TT, -1))
        if action is None:
            return self.forward_inference(td, logits, value)
        return self.forward_training(td, action, logits, value)


class OwnLSTM(OwnForward):
    """Uses its own nn.LSTM, which knows nothing of episodes."""

    def __init__(self, env, **kwargs):
        super().__init__(env, hidden_size=16, **kwargs)
        self.lstm = nn.LSTM(12, 16, 3)


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = nn.Linear(5, 128), nn.Linear(128, 5)

    def encode_observations(self, observations):
        return self.encoder(observations)

    def decode_actions(self, hidden):
        return self.head(hidden)[:, :4], self.head(hidden)[:, 4]


def make(kind: type[LSTMWrapper] = Small, **kwargs) -> LSTMWrapper:
    torch.manual_seed(1)
    return kind(vector_env(), **kwargs)


def acting_td(policy: LSTMWrapper, rows: int, first: int = 0, seed: int = 0, **flags: Tensor) -> TensorDict:
    generator = torch.Generator().manual_seed(seed)
    none = torch.zeros(rows, dtype=torch.bool)
    td = TensorDict(
        {"env_obs": random_observations(policy.env_spec, (rows,), generator), "dones": none, "truncateds": none}, [rows]
    )
    td["training_env_id_start"] = torch.full((rows,), first)
    td["action_noise"] = torch.full((rows, 1), 0.5)
    return td.update(flags)


@pytest.mark.parametrize("kind", [Small, OwnForward, OwnLSTM])
@pytest.mark.parametrize("end_chance", [0, 0.02, 0.2])
@pytest.mark.parametrize("steps", [1, 8, 64])
def test_replaying_a_rollout_gives_the_probabilities_it_was_played_with(kind, end_chance, steps) -> None:
    policy = make(kind)
    assert replay_difference(policy, play(policy, 7, steps, end_chance)) < 1e-5


@pytest.mark.parametrize("core", CORES)
def test_every_core_replays(core: str) -> None:
    policy = make(core=core)
    assert replay_difference(policy, play(policy, 7, 16, 0.1)) < 1e-5


@pytest.mark.parametrize(
    "actions",
    [spaces.MultiDiscrete([3, 2]), spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (2, 3)), spaces.Discrete(1)],
    ids=str,
)
def test_every_action_space_replays(actions: spaces.Space) -> None:
    policy = Small(vector_env(actions=actions))
    assert replay_difference(policy, play(policy, 5, 8, 0.1)) < 1e-5


def test_a_policy_given_as_a_module_is_used() -> None:
    policy = LSTMWrapper(vector_env(), policy=Inner())
    assert replay_difference(policy, play(policy, 5, 8, 0.1)) < 1e-5


def test_memory_carries_no_graph_although_acting_had_one() -> None:
    policy = make()
    for seed in range(3):
        td = policy(acting_td(policy, 3, seed=seed))
        assert td["values"].requires_grad
    assert not policy.memory.memory_NLS.requires_grad
    assert all(not row.requires_grad for part in policy.get_memory() for row in part.values())


def test_an_episode_start_clears_that_row_alone_before_the_step() -> None:
    policy = make()
    policy(acting_td(policy, 4))
    before = policy.get_memory()
    start = torch.tensor([False, True, False, False])
    fresh, cleared = make(), acting_td(policy, 4, seed=1, truncateds=start)
    expected_start = fresh(acting_td(fresh, 4, seed=1))["values"][1]
    carried = policy(acting_td(policy, 4, seed=1))["values"]
    policy.set_memory(before)
    values = policy(cleared)["values"]
    assert torch.equal(values[1], expected_start)
    assert torch.equal(values[[0, 2, 3]], carried[[0, 2, 3]])


def test_rows_never_see_each_others_memory_when_batches_arrive_out_of_order() -> None:
    together, apart = make(), make()
    for step in range(4):
        td = acting_td(together, 6, seed=step)
        expected = together(td.clone())["values"]
        for part in [slice(4, 6), slice(0, 1), slice(1, 4)] if step % 2 else [slice(0, 3), slice(3, 6)]:
            piece = td[part].clone()
            piece["training_env_id_start"] = torch.full((part.stop - part.start,), part.start)
            torch.testing.assert_close(apart(piece)["values"], expected[part], rtol=0, atol=1e-6)


def test_learning_does_not_change_stored_memory() -> None:
    policy = make()
    segments = play(policy, 4, 5, 0.1)
    before = policy.memory.memory_NLS.clone()
    for segment in segments:
        replay(policy, segment)
    assert torch.equal(policy.memory.memory_NLS, before)


def test_learning_without_given_memory_starts_from_the_rows_own() -> None:
    policy = make()
    play(policy, 4, 3, 0)
    before = policy.get_memory()
    (segment,) = play(policy, 4, 5, 0.1, rollouts=1, seed=5)
    policy.set_memory(before)
    td = segment.fields.select("env_obs", "dones", "truncateds")
    replayed = policy(td, action=segment.fields["actions"])
    torch.testing.assert_close(replayed["act_log_prob"], segment.fields["act_log_prob"], rtol=0, atol=1e-5)


def test_get_memory_is_a_copy_that_set_memory_restores_with_the_same_future() -> None:
    policy = make()
    play(policy, 4, 3, 0)
    saved = policy.get_memory()
    kept = {env_id: row.clone() for env_id, row in saved[0].items()}
    future = policy(acting_td(policy, 4, seed=9))["full_log_probs"]
    assert all(torch.equal(saved[0][env_id], row) for env_id, row in kept.items())
    other = make()
    other.set_memory(saved)
    assert torch.equal(other(acting_td(other, 4, seed=9))["full_log_probs"], future)


def test_memory_is_keyed_by_environment_row() -> None:
    policy = make()
    policy(acting_td(policy, 2, first=5))
    h, c = policy.get_memory()
    assert list(h) == list(c) == [5, 6]
    assert h[5].shape == (2, 16)


def test_memory_in_whole_slices_is_understood_too() -> None:
    policy = make()
    h, c = torch.randn(2, 3, 16), torch.randn(2, 3, 16)
    policy.set_memory(({4: h}, {4: c}))
    assert torch.equal(policy.get_memory()[0][5], h[:, 1])


def test_one_row_or_all_can_be_reset_and_unknown_rows_are_ignored() -> None:
    policy = make()
    policy(acting_td(policy, 3))
    policy.reset_env_memory(1)
    policy.reset_env_memory(1000)
    assert list(policy.get_memory()[0]) == [0, 2]
    policy.reset_memory()
    assert policy.has_memory()
    assert policy.get_memory() == ({}, {})


def test_memory_does_not_grow_with_steps_or_episodes() -> None:
    policy = make()
    with torch.no_grad():
        for step in range(300):
            policy(acting_td(policy, 4, dones=torch.rand(4) < 0.5))
            if step == 10:
                size = policy.memory.memory_NLS.numel()
    assert policy.memory.memory_NLS.numel() == size


def test_shape_fields_are_set_on_every_call() -> None:
    policy = make()
    acted = policy(acting_td(policy, 3))
    assert acted["bptt"].tolist() == [1, 1, 1]
    assert acted["batch"].tolist() == [3, 3, 3]
    (segment,) = play(policy, 3, 4, 0, rollouts=1)
    learned = replay(policy, segment)
    assert learned.batch_size == (3, 4)
    assert learned["bptt"].dtype == torch.long
    assert (learned["bptt"] == 4).all()
    assert (learned["batch"] == 3).all()
    assert learned["full_log_probs"].shape == (3, 4, 4)
    with pytest.raises(RuntimeError, match="single memory location"):  # other calls have them too
        acted["batch"].add_(1)


def test_memory_is_not_part_of_the_weights() -> None:
    policy = make()
    policy(acting_td(policy, 3))
    assert not any("memory" in name for name in policy.state_dict())


def test_an_option_that_nothing_uses_is_kept_and_named_with_the_nearest_known_one() -> None:
    with pytest.warns(UserWarning, match="clip_rnge; did you mean clip_range"):
        policy = make(clip_rnge=0.1)
    assert policy.unused_arguments == {"clip_rnge": 0.1}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(clip_range=0.1, analyze_weights_interval=3)


def test_a_call_of_the_wrong_shape_is_an_error_with_the_expected_shape() -> None:
    policy = make()
    (segment,) = play(policy, 3, 4, 0, rollouts=1)
    with pytest.raises(ValueError, match="give the actions too"):
        policy(segment.fields.select("env_obs"))
    with pytest.raises(ValueError, match=r"\[B, T\]"):
        policy(acting_td(policy, 3), action=torch.zeros(3))
