"""Audit a plain module, `(obs, (h, c)) -> (logits, value, (h, c))`:

python examples/audit/plain_module.py
engram audit examples/audit/plain_module.py:Plain env=recall
"""

from torch import nn

from engram.audit import check
from engram.audit.text_report import as_text
from engram.env.registry import make_spec
from engram.env.settings import Recall


class Plain(nn.Module):
    """One step at a time. Whoever calls it keeps (h, c), and clears it where an episode starts; so does the audit.

    A module with a third argument called `starts` (or `dones`, `episode_starts`, …) is told, and clears it itself.
    """

    def __init__(self, env):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(env.single_observation_space.shape[0], 32), nn.Tanh())
        self.cell = nn.LSTMCell(32, 32)
        self.actor, self.critic = nn.Linear(32, int(env.single_action_space.n)), nn.Linear(32, 1)

    def forward(self, obs, state):
        h, c = self.cell(self.encoder(obs), state)
        return self.actor(h), self.critic(h), (h, c)


if __name__ == "__main__":
    spec = make_spec(Recall())
    print(as_text(check(Plain(spec), spec)))
