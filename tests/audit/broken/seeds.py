"""Policies as they were written before and after a first round of repairs, and what was still wrong with them."""

import torch
from audit.broken.case import Case
from tensordict import TensorDict
from torch import nn


class Network(nn.Module):
    """Encoder and heads; the wrappers around it differ."""

    def __init__(self, env, hidden_size=16):
        super().__init__()
        self.encoder = nn.Linear(env.single_observation_space.shape[0], 12)
        self.actor, self.value = nn.Linear(hidden_size, int(env.single_action_space.n)), nn.Linear(hidden_size, 1)

    def encode_observations(self, observations, state=None):
        return torch.relu(self.encoder(observations.to(self.encoder.weight.dtype)))

    def decode_actions(self, hidden):
        return self.actor(hidden), self.value(hidden)


class Before(nn.Module):
    """State in the `state` argument, not detached; no ids, no resets, no fields, no interface, no options."""

    def __init__(self, env, policy=None, input_size=12, hidden_size=16, num_layers=2):
        super().__init__()
        self.policy = policy or Network(env, hidden_size)
        self.lstm = nn.LSTM(input_size, hidden_size, num_layers)

    def forward(self, td, state=None, action=None):
        observations = td["env_obs"]
        if state is None:
            state = {"lstm_h": None, "lstm_c": None, "hidden": None}
        B, TT = (observations.shape[0], 1) if action is None else observations.shape[:2]
        hidden = self.policy.encode_observations(observations.reshape(B * TT, -1), state)
        lstm_state = None if state["lstm_h"] is None else (state["lstm_h"], state["lstm_c"])
        hidden = hidden.view(B, TT, -1).transpose(0, 1)
        lstm_output, (state["lstm_h"], state["lstm_c"]) = self.lstm(hidden, lstm_state)
        return self.finish(td, lstm_output.transpose(0, 1).reshape(B * TT, -1), action)

    def finish(self, td, hidden, action):
        logits, value = self.policy.decode_actions(hidden)
        log_probs = logits.log_softmax(-1)
        if action is None:
            actions = torch.multinomial(log_probs.exp(), 1).squeeze(-1)
            td["actions"], td["act_log_prob"] = actions, log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
            td["values"], td["full_log_probs"] = value.flatten(), log_probs
            return td
        shape = action.shape
        td["act_log_prob"] = log_probs.gather(-1, action.reshape(-1, 1)).view(shape)
        td["entropy"] = -(log_probs.exp() * log_probs).sum(-1).view(shape)
        td["value"], td["full_log_probs"] = value.view(shape), log_probs.view(*shape, -1)
        return td


class After(Before):
    """Detached, with a dict by the first id of a slice and a reset at the start of a call; hidden from the compiler."""

    def __init__(self, env, clip_range=0, analyze_weights_interval=300, **kwargs):
        super().__init__(env)
        self.clip_range, self.analyze_weights_interval = clip_range, analyze_weights_interval
        self.lstm_h, self.lstm_c = {}, {}

    @torch._dynamo.disable
    def forward(self, td, state=None, action=None):
        observations = td["env_obs"]
        B, TT = (observations.shape[0], 1) if action is None else observations.shape[:2]
        td.set("bptt", torch.full(td.batch_size, TT))
        td.set("batch", torch.full(td.batch_size, B))
        hidden = self.policy.encode_observations(observations.reshape(B * TT, -1), state)
        lstm_h, lstm_c, env_id = self._manage_lstm_state(td, B, TT, observations.device)
        hidden = hidden.view(B, TT, -1).transpose(0, 1)
        lstm_output, (new_h, new_c) = self.lstm(hidden, (lstm_h, lstm_c))
        self._store_lstm_state(new_h, new_c, env_id)
        return self.finish(td, lstm_output.transpose(0, 1).reshape(B * TT, -1), action)

    def _manage_lstm_state(self, td: TensorDict, B, TT, device):
        start = td.get("training_env_id_start", None)
        env_id = 0 if start is None else int(start[0].item())
        if env_id in self.lstm_h and env_id in self.lstm_c:
            lstm_h, lstm_c = self.lstm_h[env_id], self.lstm_c[env_id]
            reset_mask = (td["dones"].bool() | td["truncateds"].bool()).view(1, -1, 1)
            lstm_h, lstm_c = lstm_h.masked_fill(reset_mask, 0), lstm_c.masked_fill(reset_mask, 0)
        else:
            lstm_h, lstm_c = (torch.zeros(2, B, 16, device=device) for _ in range(2))
        return lstm_h, lstm_c, env_id

    def _store_lstm_state(self, lstm_h, lstm_c, env_id):
        self.lstm_h[env_id], self.lstm_c[env_id] = lstm_h.detach(), lstm_c.detach()

    def has_memory(self):
        return True

    def get_memory(self):
        return self.lstm_h, self.lstm_c

    def set_memory(self, memory):
        self.lstm_h, self.lstm_c = memory[0], memory[1]

    def reset_memory(self):
        self.lstm_h.clear()
        self.lstm_c.clear()

    def reset_env_memory(self, env_id):
        self.lstm_h.pop(env_id, None)
        self.lstm_c.pop(env_id, None)

    def clip_weights(self):
        if self.clip_range > 0:
            for module in self.modules():
                if isinstance(module, nn.Linear | nn.Conv2d | nn.Conv1d):
                    module.weight.data.clamp_(-self.clip_range, self.clip_range)
                    module.bias.data.clamp_(-self.clip_range, self.clip_range)


class AfterWithoutDetach(After):
    def _store_lstm_state(self, lstm_h, lstm_c, env_id):
        self.lstm_h[env_id], self.lstm_c[env_id] = lstm_h, lstm_c


OF_BOTH = {"boundary_learning", "gradient_boundary", "replay", "memory_interface", "weight_clipping", "configuration"}
OF_AFTER = {*OF_BOTH, "row_isolation", "compile"}
CASES = [
    Case(Before, {*OF_BOTH, "detachment", "memory_used", "td_fields"}, "state['lstm_h']"),
    Case(After, OF_AFTER, "while acting on rows"),
    Case(AfterWithoutDetach, {*OF_AFTER, "detachment", "graph_growth"}, "lstm_h[0]"),
]
