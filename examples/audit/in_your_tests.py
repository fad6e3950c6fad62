"""Audit a policy in tests of your own: `pytest examples/audit/in_your_tests.py`."""

from torch import nn

from engram import LSTMWrapper
from engram.audit import assert_memory_is_right
from engram.env.registry import make_spec
from engram.env.settings import Recall


class Mine(LSTMWrapper):
    def __init__(self, env, **kwargs):
        super().__init__(env, input_size=32, hidden_size=32, num_layers=1, **kwargs)
        self.encoder = nn.Linear(self.env_spec.single_observation_space.shape[0], 32)
        self.actor, self.critic = nn.Linear(32, self.action_space.logits), nn.Linear(32, 1)

    def encode_observations(self, observations):
        return self.encoder(observations.to(self.encoder.weight.dtype)).relu()

    def decode_actions(self, hidden):
        return self.actor(hidden), self.critic(hidden)


def test_the_memory_of_my_policy_is_right():
    assert_memory_is_right(Mine, make_spec(Recall()))
