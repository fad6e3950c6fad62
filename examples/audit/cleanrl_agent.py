"""Audit an agent in the style of CleanRL's LSTM script, `get_action_and_value(x, lstm_state, done, action=None)`:

python examples/audit/cleanrl_agent.py
engram audit examples/audit/cleanrl_agent.py:Agent env=recall
"""

import torch
from torch import nn
from torch.distributions import Categorical

from engram.audit import check
from engram.audit.text_report import as_text
from engram.env.registry import make_spec
from engram.env.settings import Recall


class Agent(nn.Module):
    """Steps through a sequence [T * B], time first, and clears the state of rows that are done before each step."""

    def __init__(self, envs):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(envs.single_observation_space.shape[0], 32), nn.Tanh())
        self.lstm = nn.LSTM(32, 32)
        self.actor, self.critic = nn.Linear(32, int(envs.single_action_space.n)), nn.Linear(32, 1)

    def get_states(self, x, lstm_state, done):
        rows = lstm_state[0].shape[1]
        outputs = []
        for hidden, ended in zip(self.network(x).view(-1, rows, 32), done.view(-1, rows), strict=True):
            starts = ended.bool().view(1, -1, 1)  # the script multiplies by 1 - done, which keeps a NaN
            cleared = (lstm_state[0].masked_fill(starts, 0), lstm_state[1].masked_fill(starts, 0))
            output, lstm_state = self.lstm(hidden.unsqueeze(0), cleared)
            outputs.append(output)
        return torch.cat(outputs).flatten(0, 1), lstm_state

    def get_action_and_value(self, x, lstm_state, done, action=None):
        hidden, lstm_state = self.get_states(x, lstm_state, done)
        probs = Categorical(logits=self.actor(hidden))
        action = probs.sample() if action is None else action
        return action, probs.log_prob(action), probs.entropy(), self.critic(hidden), lstm_state


if __name__ == "__main__":
    spec = make_spec(Recall())
    print(as_text(check(Agent(spec), spec)))
