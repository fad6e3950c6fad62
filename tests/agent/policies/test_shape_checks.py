"""What a policy's two methods give is compared with what the core and the actions need, and the mistake is named."""

from collections.abc import Iterator

import pytest
import torch
from gymnasium import spaces
from support.own_forward import own_forward
from support.playing import play, random_observations, replay_difference, vector_env
from tensordict import TensorDict
from torch import Tensor, nn

from engram import LSTMWrapper, MettaAgent
from engram.agent.heads import BilinearActor, Critic, make_actor
from engram.agent.recurrent import CORES
from engram.native.library import without_kernels
from engram.settings import UserError

ROWS, STEPS = 6, 2


@pytest.fixture(autouse=True, params=["kernels", "PyTorch"])
def _both_ways(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "kernels":
        yield
    else:
        with without_kernels():
            yield


class Sized(LSTMWrapper):
    """Each of its parts has the given size."""

    def __init__(self, env, features=64, logits=None, values=1, **kwargs) -> None:
        super().__init__(env, input_size=64, hidden_size=32, num_layers=1, **kwargs)
        self.encoder = nn.Linear(self.env_spec.single_observation_space.shape[0], features)
        self.actor = nn.Linear(32, self.action_space.logits if logits is None else logits)
        self.critic = nn.Linear(32, values)

    def encode_observations(self, observations):
        return self.encoder(observations)

    def decode_actions(self, hidden):
        return self.actor(hidden), self.critic(hidden)


class OwnForward(Sized):
    forward = own_forward


def act(policy: nn.Module, spec, grad: bool = False) -> TensorDict:
    observations = random_observations(spec, (ROWS,), torch.Generator().manual_seed(0))
    with torch.set_grad_enabled(grad):
        return policy(TensorDict({"env_obs": observations}, [ROWS]))


def learn(policy: LSTMWrapper) -> TensorDict:
    spec = policy.env_spec
    observations = random_observations(spec, (ROWS // STEPS, STEPS), torch.Generator().manual_seed(0))
    shape = (ROWS // STEPS, STEPS, *spec.single_action_space.shape)
    return policy(TensorDict({"env_obs": observations}, shape[:2]), action=torch.zeros(shape, dtype=torch.long))


def assert_refused(policy: LSTMWrapper, message: str) -> None:
    for call in (
        lambda: act(policy, policy.env_spec),
        lambda: act(policy, policy.env_spec, grad=True),
        lambda: act(MettaAgent(vector_env(), policy), policy.env_spec),
        lambda: learn(policy),
    ):
        with pytest.raises(UserError, match=message):
            call()


class WithDirectLogits(Sized):
    """Its encoder also returns logits, of the given size."""

    def __init__(self, env, direct, **kwargs) -> None:
        super().__init__(env, **kwargs)
        self.direct = nn.Linear(self.env_spec.single_observation_space.shape[0], direct)

    def encode_observations(self, observations):
        return self.encoder(observations), self.direct(observations)


def test_logits_beside_the_features_are_added_to_those_of_the_head() -> None:
    policy = WithDirectLogits(vector_env(), direct=4)
    nn.init.zeros_(policy.actor.weight)
    nn.init.zeros_(policy.actor.bias)
    observations = random_observations(policy.env_spec, (ROWS,), torch.Generator().manual_seed(0))
    expected = policy.direct(observations).log_softmax(-1)
    torch.testing.assert_close(act(policy, policy.env_spec)["full_log_probs"], expected)
    assert replay_difference(policy, play(policy, rows=3, steps=5, end_chance=0.3)) < 1e-5


@pytest.mark.parametrize("direct", [1, 3, 64])
def test_logits_beside_the_features_have_the_size_of_those_of_the_head(direct: int) -> None:
    message = (
        rf"encode_observations returned a pair of features and \[6, {direct}\], .* logits \[6, 4\] of decode_actions"
    )
    assert_refused(WithDirectLogits(vector_env(), direct), message)


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("features", [3, 63, 65, 6400])
def test_features_of_the_wrong_width_are_named(features: int, core: str) -> None:
    message = rf"Sized: encode_observations returned \[6, {features}\], .* core expects \[6, 64\] \(input_size=64\)"
    assert_refused(Sized(vector_env(), features, core=core), message)
    message = rf"inputs are \[\d, \d, {features}\], expected \[T, B, 64\]"
    assert_refused(OwnForward(vector_env(), features, core=core), message)


class Reshaped(Sized):
    """Returns its features after a change."""

    def encode_observations(self, observations):
        return self.change(self.encoder(observations))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda features: features.reshape(3, 128), r"\[3, 128\]"),
        (lambda features: features.reshape(1, 384), r"\[1, 384\]"),
        (lambda features: features[1:], r"\[5, 64\]"),
        (lambda features: features.detach().numpy(), "a ndarray"),
        (lambda features: None, "a NoneType"),
    ],
)
def test_features_that_are_not_a_row_for_each_observation_are_named(change, said: str) -> None:
    policy = Reshaped(vector_env())
    policy.change = change
    assert_refused(policy, f"encode_observations returned {said}")


def test_features_of_several_dimensions_are_flattened() -> None:
    policy = Reshaped(vector_env())
    policy.change = lambda features: features.view(-1, 4, 4, 4)
    assert replay_difference(policy, play(policy, 5, 8, 0.1)) < 1e-5


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("shape", [(2, 8, 65), (2, 8, 63), (8, 64), (1, 2, 8, 64)])
def test_a_core_refuses_inputs_of_the_wrong_size(core: str, shape: tuple[int, ...]) -> None:
    made, starts = CORES[core](64, 128, 1), torch.zeros(2, 8, dtype=torch.bool)
    with pytest.raises(UserError, match=r"expected \[T, B, 64\]"):
        made(torch.ones(shape), made.initial_memory(8), starts)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("size", [127, 129, 32])
def test_heads_refuse_features_of_the_wrong_size(grad: bool, size: int) -> None:
    discrete, continuous = Sized(vector_env()), Sized(vector_env(actions=spaces.Box(-1, 1, (2,))))
    actors = [make_actor(policy.env_spec, policy.action_space, 128) for policy in (discrete, continuous)]
    for head in (Critic(128), BilinearActor(128, 5), *actors):
        with (
            torch.set_grad_enabled(grad),
            pytest.raises(UserError, match=rf"got features \[5, {size}\], expected \[N, 128\]"),
        ):
            head(torch.rand(5, size))


@pytest.mark.parametrize("kind", [Sized, OwnForward])
@pytest.mark.parametrize("logits", [1, 3, 5, 9])
def test_a_wrong_number_of_logits_is_named(logits: int, kind: type[Sized]) -> None:
    message = rf"{kind.__name__}: decode_actions returned logits \[6, {logits}\], but 4 actions need \[6, 4\]"
    assert_refused(kind(vector_env(), logits=logits), message)


@pytest.mark.parametrize(
    ("actions", "needs"),
    [
        (spaces.MultiDiscrete([3, 2]), r"choices among 3 x 2 need \[6, 5\]"),
        (spaces.Box(-1, 1, (2,)), r"continuous actions of 2 need \[6, 4\]"),
    ],
    ids=str,
)
def test_the_logits_of_every_kind_of_actions_are_counted(actions: spaces.Space, needs: str) -> None:
    with pytest.raises(UserError, match=rf"returned logits \[6, 6\], but {needs}"):
        learn(Sized(vector_env(actions=actions), logits=6))


@pytest.mark.parametrize("kind", [Sized, OwnForward])
@pytest.mark.parametrize("values", [2, 4])
def test_values_that_are_not_one_for_each_row_are_named(values: int, kind: type[Sized]) -> None:
    message = rf"decode_actions returned values \[6, {values}\], .* \[6\] or \[6, 1\]"
    assert_refused(kind(vector_env(), values=values), message)


class Decoding(Sized):
    """Returns its logits and values after a change."""

    def decode_actions(self, hidden):
        return self.change(*super().decode_actions(hidden))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda logits, value: logits, r"returned \[6, 4\]"),
        (lambda logits, value: (logits, value, value), "returned a tuple"),
        (lambda logits, value: (logits, None), "returned a tuple"),
        (lambda logits, value: None, "returned a NoneType"),
        (lambda logits, value: (logits, value[1:]), r"returned values \[5, 1\]"),
        (lambda logits, value: (logits, value.mean()), r"returned values \[\]"),
        (lambda logits, value: (logits[1:], value), r"returned logits \[5, 4\]"),
        (lambda logits, value: (value, logits), r"returned logits \[6, 1\]"),
    ],
)
def test_outputs_other_than_a_pair_of_logits_and_values_are_named(change, said: str) -> None:
    policy = Decoding(vector_env())
    policy.change = change
    assert_refused(policy, f"Decoding: decode_actions .*{said}")


@pytest.mark.parametrize(
    "change",
    [lambda value: value.squeeze(1), lambda value: value.view(-1, STEPS)],
    ids=["[N]", "[B, T]"],
)
def test_values_may_have_a_last_dimension_of_one(change) -> None:
    policy = Decoding(vector_env())
    policy.change = lambda logits, value: (logits, value)
    expected = learn(policy)["value"]
    policy.change = lambda logits, value: (logits, change(value))
    assert torch.equal(learn(policy)["value"], expected)


class Empty(LSTMWrapper):
    pass


class OnlyEncodes(Empty):
    def encode_observations(self, observations: Tensor) -> Tensor:
        return torch.zeros(len(observations), self.input_size)


def test_a_method_that_is_missing_is_named() -> None:
    assert_refused(Empty(vector_env()), "Empty must define encode_observations")
    assert_refused(OnlyEncodes(vector_env()), "OnlyEncodes must define decode_actions")
    assert_refused(LSTMWrapper(vector_env(), policy=nn.Linear(2, 2)), "Linear must define encode_observations")
