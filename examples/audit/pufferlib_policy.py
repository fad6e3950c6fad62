"""Audit a policy with the interface of PufferLib's LSTM wrapper, `forward_eval(obs, state)` and `forward(obs, state)`:

python examples/audit/pufferlib_policy.py
engram audit examples/audit/pufferlib_policy.py:make env=recall

It is expected to fail. The loop of PufferLib 3.0 never clears memory where an episode starts, and learns every segment
from an empty one: the report says so, and where.
"""

from types import SimpleNamespace

from torch import nn

from engram.audit import AuditError, check
from engram.env.registry import make_spec
from engram.env.settings import Recall


class Encoder(nn.Module):
    """What PufferLib calls the policy: encode and decode, without memory."""

    is_continuous = False

    def __init__(self, env, hidden_size=32):
        super().__init__()
        self.encoder = nn.Linear(env.single_observation_space.shape[0], hidden_size)
        self.decoder, self.value = nn.Linear(hidden_size, int(env.single_action_space.n)), nn.Linear(hidden_size, 1)

    def encode_observations(self, observations, state=None):
        return self.encoder(observations).relu()

    def decode_actions(self, hidden):
        return self.decoder(hidden), self.value(hidden)


class Wrapper(nn.Module):
    """For when PufferLib is not installed: the same two calls, with the state in the same places."""

    def __init__(self, env, policy, input_size, hidden_size):
        super().__init__()
        self.policy, self.input_size, self.hidden_size = policy, input_size, hidden_size
        self.lstm, self.cell = nn.LSTM(input_size, hidden_size), nn.LSTMCell(input_size, hidden_size)
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            setattr(self.cell, name, getattr(self.lstm, f"{name}_l0"))

    def forward_eval(self, observations, state):
        hidden = self.policy.encode_observations(observations, state=state)
        state["lstm_h"], state["lstm_c"] = self.cell(hidden, (state["lstm_h"], state["lstm_c"]))
        return self.policy.decode_actions(state["lstm_h"])

    def forward(self, observations, state):
        rows, steps = observations.shape[:2]
        hidden = (
            self.policy.encode_observations(observations.flatten(0, 1), state).view(rows, steps, -1).transpose(0, 1)
        )
        start = None if state["lstm_h"] is None else (state["lstm_h"], state["lstm_c"])
        hidden, (h, c) = self.lstm(hidden, start)
        state["lstm_h"], state["lstm_c"] = h.detach(), c.detach()
        logits, values = self.policy.decode_actions(hidden.transpose(0, 1).flatten(0, 1))
        return logits, values.view(rows, steps)


def make(env):
    """The policy in PufferLib's own wrapper, if that is installed."""
    try:
        from pufferlib.models import LSTMWrapper
    except ImportError:
        LSTMWrapper = Wrapper
    space = SimpleNamespace(single_observation_space=env.single_observation_space)
    return LSTMWrapper(space, Encoder(env), 32, 32)


if __name__ == "__main__":
    spec = make_spec(Recall())
    try:
        check(make(spec), spec)
    except AuditError as error:
        print(error)
