"""Policies on LSTMWrapper that override what they should have left alone, and encoders that do not see everything."""

import torch
from audit.broken.case import TOKENS, Case
from torch import nn

from engram import LSTMWrapper
from engram.agent.recurrent.store import row_ids


class Small(LSTMWrapper):
    """Right: only encodes and decodes."""

    def __init__(self, env, hidden_size=16, **kwargs):
        super().__init__(env, input_size=12, hidden_size=hidden_size, **kwargs)
        self.encoder = nn.Linear(self.env_spec.single_observation_space.shape[0], 12)
        self.actor, self.critic = nn.Linear(hidden_size, self.action_space.logits), nn.Linear(hidden_size, 1)

    def encode_observations(self, observations):
        return self.encoder(observations.to(self.encoder.weight.dtype)).relu()

    def decode_actions(self, hidden):
        return self.actor(hidden), self.critic(hidden)


class OwnForward(Small):
    """Right: writes its forward out of the building blocks."""

    def forward(self, td, state=None, action=None):
        observations = td["env_obs"]
        B, TT = observations.shape[0], 1 if action is None else observations.shape[1]
        hidden = self.encode_observations(observations.flatten(0, td.batch_dims - 1))
        lstm_h, lstm_c, env_id = self._manage_lstm_state(td, B, TT, observations.device)
        hidden, (new_h, new_c) = self.lstm(hidden.view(B, TT, -1).transpose(0, 1), (lstm_h, lstm_c))
        self._store_lstm_state(new_h, new_c, env_id)
        logits, value = self.decode_actions(hidden.transpose(0, 1).reshape(B * TT, -1))
        if action is None:
            return self.forward_inference(td, logits, value)
        return self.forward_training(td, action, logits, value)


class StoresTheGraph(OwnForward):
    def _store_lstm_state(self, lstm_h, lstm_c, env_id):
        if env_id is not None:
            packed = self.lstm.pack(lstm_h, lstm_c)
            self.memory.memory_NLS = self.memory.memory_NLS.index_copy(0, env_id, packed)


class StoresWhenLearning(OwnForward):
    def _store_lstm_state(self, lstm_h, lstm_c, env_id):
        super()._store_lstm_state(lstm_h, lstm_c, 0 if env_id is None else env_id)


class IgnoresTheSegmentsMemory(OwnForward):
    """Learns from what the rows remember now, not from what they did when the segment began."""

    def _manage_lstm_state(self, td, B, TT, device):
        h, c, ids = super()._manage_lstm_state(td, B, TT, device)
        if TT > 1:
            first = (td["dones"] | td["truncateds"])[:, 0].view(-1, 1, 1)
            h, c = self.lstm.unpack(self.memory.read(row_ids(td, B)).masked_fill(first, 0))
        return h, c, ids


class DoesNotTellTheCore(OwnForward):
    """Memory is cleared at the first step only: the LSTM is not told of starts."""

    def _manage_lstm_state(self, td, B, TT, device):
        result = super()._manage_lstm_state(td, B, TT, device)
        self.lstm.pending_starts = None
        return result


class SwallowsOptions(Small):
    def __init__(self, env, **kwargs):
        super().__init__(env)


class OwnDict(OwnForward):
    """A store of its own, by slice, in place of the one it has."""

    def __init__(self, env, **kwargs):
        super().__init__(env, **kwargs)
        self.states = {}

    def _manage_lstm_state(self, td, B, TT, device):
        super()._manage_lstm_state(td, B, TT, device)
        start = td.get("training_env_id_start", None)
        key = 0 if start is None else int(start[0])
        zeros = torch.zeros(2, B, 16)
        h, c = self.states.get(key, (zeros, zeros))
        starts = (td["dones"] | td["truncateds"]).reshape(B, TT)[:, 0].view(1, -1, 1)
        return h.masked_fill(starts, 0), c.masked_fill(starts, 0), key

    def _store_lstm_state(self, lstm_h, lstm_c, env_id):
        self.states[env_id] = lstm_h.detach(), lstm_c.detach()

    def reset_memory(self):
        self.states.clear()


class Tokens(Small):
    """Right: every token's value into the box, at its place and feature."""

    def __init__(self, env, **kwargs):
        super().__init__(env, **kwargs)
        height, width = self.env_spec.window
        self.encoder = nn.Linear((height * width + 1) * 6, 12)
        self.register_buffer("scale", torch.tensor([f.normalization for f in self.env_spec.features]))

    def encode_observations(self, observations):
        places = self.places(observations)
        values = self.values(observations[..., 2], observations[..., 1].clamp(max=5).long())
        box = torch.zeros(len(observations), 26 * 6 + 1, dtype=self.encoder.weight.dtype)
        box = box.scatter_(1, places, values.to(box.dtype))
        return self.encoder(box[:, :-1]).relu()

    def places(self, observations):
        location, feature = observations[..., 0].long(), observations[..., 1].long()
        cell = torch.where(location == 0xFE, 25, (location // 16) * 5 + location % 16)
        return torch.where(location == 0xFF, 26 * 6, cell * 6 + feature)  # empty tokens go where nobody looks

    def values(self, values, features):
        return values.float() / self.scale[features]


class BytesDivided(Tokens):
    def values(self, values, features):
        return values // self.scale[features].byte()


class CornerErased(Tokens):
    """Empty tokens are written too, as a 0 to the first place."""

    def places(self, observations):
        places = super().places(observations)
        return torch.where(places == 26 * 6, 0, places)

    def values(self, values, features):
        return super().values(values, features) * (values != 0xFF)


class OwnTokensDropped(Tokens):
    def places(self, observations):
        return super().places(observations).masked_fill(observations[..., 0] == 0xFE, 26 * 6)


CASES = [
    Case(StoresTheGraph, {"detachment", "graph_growth", "memory_interface"}, "memory.memory_NLS"),
    Case(StoresWhenLearning, {"memory_after_learning"}, "the outputs of acting afterwards"),
    Case(IgnoresTheSegmentsMemory, {"replay"}),
    Case(DoesNotTellTheCore, {"boundary_learning", "gradient_boundary", "replay"}, "not cleared inside a segment"),
    Case(SwallowsOptions, {"configuration", "weight_clipping"}, "clip_range=0.05 was given"),
    Case(OwnDict, {"determinism", "row_isolation", "replay", "memory_interface", "memory_after_learning"}),
    Case(BytesDivided, {"observation_tokens"}, "makes no difference", TOKENS),
    Case(CornerErased, {"observation_tokens"}, "corner cell (0, 0)", TOKENS),
    Case(OwnTokensDropped, {"observation_tokens"}, "0xFE", TOKENS),
]
