"""Train a policy of your own: say how to encode observations and how to decode actions. Memory is handled for you."""

import sys

from torch import nn

import engram


class Mine(engram.LSTMWrapper):
    def __init__(self, env, hidden_size=64, **kwargs):
        super().__init__(env, input_size=32, hidden_size=hidden_size, num_layers=1, **kwargs)
        size = self.env_spec.single_observation_space.shape[0]
        self.encoder = nn.Sequential(nn.Linear(size, 32), nn.Tanh())
        self.actor = nn.Linear(hidden_size, self.action_space.logits)
        self.critic = nn.Linear(hidden_size, 1)

    def encode_observations(self, observations):  # [N, ...] -> [N, input_size]
        return self.encoder(observations)

    def decode_actions(self, hidden):  # [N, hidden_size] -> logits, values
        return self.actor(hidden), self.critic(hidden)


steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
wrappers = {"env.wrappers": ["mask_velocity"]}  # hides velocities, so that memory is needed
run = engram.train("CartPole-v1", Mine, total_timesteps=steps, run="mine", **wrappers)
print("mean return:", run.evaluate(episodes=20).returns.mean)
