"""A td policy with any memory: a subclass says what a row's memory is, and what one step does with it."""

import torch
from torch import nn


class Design(nn.Module):
    """Right. Memory is a tuple of tensors [rows, ...], stored by row; learning steps through the segment."""

    features = 12
    hidden = 16

    def __init__(self, env, clip_range=0.0, analyze_weights_interval=300):
        super().__init__()
        self.clip_range, self.analyze_weights_interval = clip_range, analyze_weights_interval
        self.choices = int(env.single_action_space.n)
        self.encoder = nn.Linear(env.single_observation_space.shape[0], self.features)
        self.store = {}
        self.build()
        self.actor, self.critic = nn.Linear(self.hidden, self.choices), nn.Linear(self.hidden, 1)

    # A subclass defines these.

    def build(self):
        self.cell = nn.LSTMCell(self.features, self.hidden)

    def blank(self, rows):
        """The memory of rows that have seen nothing."""
        zeros = self.critic.weight.new_zeros(rows, self.hidden)
        return zeros, zeros.clone()

    def step(self, x, memory):
        """Features [B, ...] and memory to hidden [B, hidden] and memory."""
        h, c = self.cell(x, memory)
        return h, (h, c)

    # What a mutant gets wrong.

    def encode(self, observations):
        return self.encoder(observations.to(self.encoder.weight.dtype)).relu()

    def starts(self, td):
        return td["dones"] | td["truncateds"]

    def clear(self, memory, start):
        blank = self.blank(len(start))
        return tuple(torch.where(_like(start, m), b.to(m.dtype), m) for m, b in zip(memory, blank, strict=True))

    def ids(self, td, B):
        return [int(td["training_env_id_start"][0]) + i for i in range(B)]

    def load(self, ids):
        rows = [self.store[i] if i in self.store else tuple(m[0] for m in self.blank(1)) for i in ids]
        return tuple(torch.stack(parts) for parts in zip(*rows, strict=True))

    def save(self, ids, memory):
        for number, row in enumerate(ids):
            self.store[row] = tuple(m[number].detach().clone() for m in memory)

    def run(self, xs, starts, memory, actions=None):
        """[T, B, ...] through the steps of a call."""
        outputs = []
        for t in range(len(xs)):
            memory = self.before_step(self.clear(memory, starts[t]), t, len(xs))
            h, memory = self.step(xs[t], memory)
            outputs.append(h)
            if actions is not None:
                memory = self.after_action(memory, actions[t])
        return torch.stack(outputs), memory

    def before_step(self, memory, t, T):
        return memory

    def after_action(self, memory, action):
        return memory

    def memory_for_learning(self, B):
        return self.load(list(range(B)))

    def heads(self, hidden):
        return self.actor(hidden), self.critic(hidden).squeeze(-1)

    def draw(self, log_probs):
        return torch.multinomial(log_probs.exp(), 1).squeeze(-1)

    def forward(self, td, state=None, action=None):
        B, T = (td.batch_size[0], 1) if action is None else td.batch_size
        td["bptt"], td["batch"] = torch.full(td.batch_size, T), torch.full(td.batch_size, B)
        observations, starts = td["env_obs"], self.starts(td)
        xs = self.encode(observations.reshape(B * T, -1)).view(B, T, -1).transpose(0, 1)
        if action is None:
            ids = self.ids(td, B)
            outputs, memory = self.run(xs, starts.view(1, B), self.load(ids))
            logits, value = self.heads(outputs[0])
            log_probs = logits.log_softmax(-1)
            actions = self.draw(log_probs)
            self.save(ids, self.after_action(memory, actions))
            td["actions"], td["act_log_prob"] = actions, log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
            td["values"], td["full_log_probs"] = value, log_probs
            return td
        outputs, _ = self.run(xs, starts.t(), self.memory_for_learning(B), action.t())
        logits, value = self.heads(outputs.transpose(0, 1))
        log_probs = logits.log_softmax(-1)
        td["act_log_prob"] = log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        td["entropy"] = -(log_probs.exp() * log_probs).sum(-1)
        td["value"], td["full_log_probs"] = value, log_probs
        return td

    # The memory interface.

    def has_memory(self):
        return True

    def get_memory(self):
        parts = len(self.blank(1))
        return tuple({row: memory[part].clone() for row, memory in self.store.items()} for part in range(parts))

    def set_memory(self, memory):
        self.store = {row: tuple(part[row].clone() for part in memory) for row in memory[0]}

    def reset_memory(self):
        self.store = {}

    def reset_env_memory(self, env_id):
        self.store.pop(env_id, None)

    @torch.no_grad()
    def clip_weights(self):
        if self.clip_range > 0:
            for parameter in self.parameters():
                parameter.clamp_(-self.clip_range, self.clip_range)


def _like(start, memory):
    return start.view(-1, *[1] * (memory.dim() - 1))
