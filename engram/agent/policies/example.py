"""Example: the smallest complete policy. Copy this file, change the network, and train it with
`./tools/train.py py_agent=path/to/your_file.py:YourClass`.

A policy encodes observations and decodes the core's output. The base class handles memory.
"""

import torch
from torch import Tensor, nn

from engram import LSTMWrapper
from engram.agent.encoders import make_encoder
from engram.agent.encoders.box import TokensToBox
from engram.agent.layers import conv_shape
from engram.agent.observations import Observations


class Example(LSTMWrapper):
    """A small CNN over the token grid, and the features of the agent's own cell. Other observations: a ready encoder.

    >>> from engram.env.registry import make_spec
    >>> from engram.env.settings import TMaze
    >>> policy = Example(make_spec(TMaze()))
    """

    def __init__(self, env, input_size=512, hidden_size=512, num_layers=2, **kwargs):
        super().__init__(env, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers, **kwargs)
        spec = self.actor_spec
        if spec.observation_kind == "tokens":
            self.make_token_layers(spec, input_size)
        else:
            self.encoder = make_encoder(spec, "fast", input_size)
        self.actor = nn.Linear(self.output_size, self.action_space.logits)
        self.critic = nn.Linear(self.output_size, 1)

    def make_token_layers(self, spec, input_size):
        first, second = conv_shape(spec.window)
        flat = 32 * second.output[0] * second.output[1]
        self.box = TokensToBox(spec)
        self.around = nn.Sequential(
            nn.Conv2d(len(spec.features), 32, first.kernel, first.stride),
            nn.ReLU(),
            nn.Conv2d(32, 32, second.kernel, second.stride),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(flat, input_size // 2),
            nn.ReLU(),
        )
        self.own = nn.Sequential(nn.Linear(len(spec.features), input_size - input_size // 2), nn.ReLU())

    def encode_observations(self, observations: Observations) -> Tensor:
        """Tokens [N, M, 3] to features [N, input_size]: of the whole window, and of the agent's own cell."""
        if self.env_spec.observation_kind != "tokens":
            return self.encoder(observations)
        box = self.box(observations)
        height, width = self.env_spec.window
        return torch.cat([self.around(box), self.own(box[:, :, height // 2, width // 2])], dim=1)

    def decode_actions(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The core's output [N, output_size] to logits [N, actions] and values [N, 1]."""
        return self.actor(hidden), self.critic(hidden)

    def value_layer(self) -> nn.Linear:
        return self.critic
