"""A policy that handles its memory itself, without Engram's help, and rightly: what the broken ones are made of."""

import torch
from torch import Tensor, nn

CAPACITY = 4096  # rows it can remember


class Alone(nn.Module):
    def __init__(self, env, clip_range=0.0, analyze_weights_interval=300):
        super().__init__()
        self.clip_range, self.analyze_weights_interval = clip_range, analyze_weights_interval
        self.encoder = nn.Linear(env.single_observation_space.shape[0], 12)
        self.lstm = nn.LSTM(12, 16, 2)
        self.actor, self.critic = nn.Linear(16, int(env.single_action_space.n)), nn.Linear(16, 1)
        self.register_buffer("memory", torch.zeros(CAPACITY, 2, 32), persistent=False)
        self.register_buffer("known", torch.zeros(CAPACITY, dtype=torch.bool), persistent=False)

    def forward(self, td, state=None, action=None):
        observations = td["env_obs"]
        B, T = (observations.shape[0], 1) if action is None else observations.shape[:2]
        flat = td if action is None else td.reshape(B * T)
        self.set_shapes(flat, B, T)
        features = self.encode(observations.reshape(B * T, -1)).view(B, T, -1).transpose(0, 1)
        ids = self.ids(td, B, acting=action is None)
        h, c = self.recall(ids)
        outputs, h, c = self.remember(features, h, c, self.starts(td, B, T))
        if action is None:
            self.store(ids, h, c)
        hidden = outputs.transpose(0, 1).reshape(B * T, -1)
        if action is None:
            return self.act(flat, self.actor(hidden), self.critic(hidden).squeeze(-1))
        return self.judge(flat, action.reshape(B * T), self.actor(hidden), self.critic(hidden).squeeze(-1)).reshape(
            B, T
        )

    # Each of these is one thing that can be got wrong.

    def set_shapes(self, td, B, T):
        td["bptt"], td["batch"] = torch.full((B * T,), T), torch.full((B * T,), B)

    def encode(self, observations):
        return self.encoder(observations.to(self.encoder.weight.dtype)).relu()

    def ids(self, td, B, acting):
        ids = torch.arange(B)
        return ids + td["training_env_id_start"][:1] if acting else ids

    def starts(self, td, B, T):
        return (td["dones"] | td["truncateds"]).reshape(B, T).t()

    def recall(self, ids):
        h, c = self.memory[ids].transpose(0, 1).split(16, -1)
        return h.contiguous(), c.contiguous()

    def remember(self, features, h, c, starts):
        outputs = []
        for x, start in zip(features, starts, strict=True):
            h, c = self.clear(h, c, start.view(1, -1, 1))
            output, (h, c) = self.lstm(x.unsqueeze(0), (h, c))
            outputs.append(output)
        return torch.cat(outputs), h, c

    def clear(self, h, c, start):
        return h.masked_fill(start, 0), c.masked_fill(start, 0)

    def store(self, ids, h, c):
        memory = torch.cat([h, c], -1).transpose(0, 1).detach()
        self.memory[ids] = memory.to(self.memory.dtype)  # where processors have bfloat16, an LSTM may give that
        self.known[ids] = True

    def act(self, td, logits, value):
        log_probs = logits.float().log_softmax(-1) if logits.dtype == torch.bfloat16 else logits.log_softmax(-1)
        actions = self.draw(log_probs)
        td["actions"] = actions
        td["act_log_prob"] = self.log_prob_of(log_probs, actions)
        td["values"], td["full_log_probs"] = value.to(log_probs.dtype), log_probs
        return td

    def judge(self, td, actions, logits, value):
        log_probs = logits.float().log_softmax(-1) if logits.dtype == torch.bfloat16 else logits.log_softmax(-1)
        td["act_log_prob"] = self.log_prob_of(log_probs, actions)
        td["entropy"] = -(log_probs.exp() * log_probs).sum(-1)
        td["value"], td["full_log_probs"] = value.to(log_probs.dtype), log_probs
        return td

    def draw(self, log_probs):
        return torch.multinomial(log_probs.exp(), 1).squeeze(-1)

    def log_prob_of(self, log_probs, actions):
        return log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    # The memory interface.

    def has_memory(self):
        return True

    def get_memory(self) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        known = self.known.nonzero().flatten().tolist()
        rows = {row: self.memory[row].clone() for row in known}
        return {row: m[:, :16] for row, m in rows.items()}, {row: m[:, 16:] for row, m in rows.items()}

    def set_memory(self, memory):
        self.reset_memory()
        for row, h in memory[0].items():
            self.memory[row] = torch.cat([h, memory[1][row]], -1)
            self.known[row] = True

    def reset_memory(self):
        self.memory.zero_()
        self.known.zero_()

    def reset_env_memory(self, env_id):
        self.memory[env_id : env_id + 1] = 0
        self.known[env_id : env_id + 1] = False

    @torch.no_grad()
    def clip_weights(self):
        if self.clip_range > 0:
            for parameter in self.parameters():
                parameter.clamp_(-self.clip_range, self.clip_range)
