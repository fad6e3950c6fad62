"""Right and unusual designs: the audit must not accuse any of them."""

import torch
from audit.broken.wrapper import Small
from audit.designs.base import Design
from torch import nn

from engram import LSTMWrapper


class FrameStack(Design):
    """Remembers the last four observations, and nothing before."""

    frames = 4

    def build(self):
        self.mix = nn.Linear(self.features * self.frames, self.hidden)

    def blank(self, rows):
        return (self.critic.weight.new_zeros(rows, self.frames - 1, self.features),)

    def step(self, x, memory):
        frames = torch.cat([memory[0], x.unsqueeze(1)], 1)
        return self.mix(frames.flatten(1)).tanh(), (frames[:, 1:],)


class WindowAttention(Design):
    """Attends to the last eight steps of the episode."""

    window = 8

    def build(self):
        self.query, self.key, self.out = (nn.Linear(self.features, self.hidden) for _ in range(3))

    def blank(self, rows):
        weight = self.critic.weight
        return weight.new_zeros(rows, self.window, self.features), weight.new_zeros(rows, self.window)

    def step(self, x, memory):
        past = torch.cat([memory[0][:, 1:], x.unsqueeze(1)], 1)
        valid = torch.cat([memory[1][:, 1:], memory[1].new_ones(len(x), 1)], 1)
        scores = (self.query(x).unsqueeze(1) * self.key(past)).sum(-1).masked_fill(valid < 0.5, -1e9)
        return self.out((scores.softmax(-1).unsqueeze(-1) * past).sum(1)).tanh(), (past, valid)


class Clockwork(Design):
    """Two halves; the slow one moves every fourth step of the episode."""

    def build(self):
        self.fast, self.slow = nn.GRUCell(self.features, 8), nn.GRUCell(self.features, 8)

    def blank(self, rows):
        weight = self.critic.weight
        return weight.new_zeros(rows, 8), weight.new_zeros(rows, 8), weight.new_zeros(rows, 1)

    def step(self, x, memory):
        fast, slow, clock = memory
        fast = self.fast(x, fast)
        slow = torch.where(clock % 4 == 3, self.slow(x, slow), slow)
        return torch.cat([fast, slow], -1), (fast, slow, clock + 1)


class SlowOnly(Clockwork):
    """Moves only every eighth step."""

    def build(self):
        self.slow, self.mix = nn.GRUCell(self.features, 16), nn.Linear(self.features + 16, 16)

    def blank(self, rows):
        weight = self.critic.weight
        return weight.new_zeros(rows, 16), weight.new_zeros(rows, 1)

    def step(self, x, memory):
        slow, clock = memory
        slow = torch.where(clock % 8 == 7, self.slow(x, slow), slow)
        return self.mix(torch.cat([x, slow], -1)).tanh(), (slow, clock + 1)


class Leaky(Design):
    """A slow leaky integrator."""

    def build(self):
        self.mix = nn.Linear(self.features, self.hidden)

    def blank(self, rows):
        return (self.critic.weight.new_zeros(rows, self.features),)

    def step(self, x, memory):
        trace = 0.995 * memory[0] + 0.005 * x
        return self.mix(x + trace).tanh(), (trace,)


class LearnedStart(Design):
    def build(self):
        super().build()
        self.h0, self.c0 = nn.Parameter(torch.randn(self.hidden)), nn.Parameter(torch.randn(self.hidden))

    def blank(self, rows):
        return self.h0.expand(rows, -1), self.c0.expand(rows, -1)


class LearnedStartAtFlags(Design):
    """The learned state comes in where an episode starts; the store itself begins with zeros."""

    def build(self):
        super().build()
        self.h0, self.c0 = nn.Parameter(torch.randn(self.hidden)), nn.Parameter(torch.randn(self.hidden))

    def clear(self, memory, start):
        learned = self.h0, self.c0
        return tuple(torch.where(start.view(-1, 1), p, m) for p, m in zip(learned, memory, strict=True))


class PreviousAction(Design):
    """Sees what it did before."""

    def build(self):
        self.cell = nn.GRUCell(self.features + self.choices, self.hidden)

    def blank(self, rows):
        weight = self.critic.weight
        return weight.new_zeros(rows, self.hidden), weight.new_zeros(rows, self.choices)

    def step(self, x, memory):
        h = self.cell(torch.cat([x, memory[1]], -1), memory[0])
        return h, (h, memory[1])

    def after_action(self, memory, action):
        return memory[0], nn.functional.one_hot(action, self.choices).to(memory[0].dtype)


class Projected(Design):
    """An LSTM whose hidden state is smaller than its cell."""

    def build(self):
        self.lstm = nn.LSTM(self.features, 24, proj_size=16)

    def blank(self, rows):
        weight = self.critic.weight
        return weight.new_zeros(rows, 16), weight.new_zeros(rows, 24)

    def step(self, x, memory):
        output, (h, c) = self.lstm(x.unsqueeze(0), tuple(m.unsqueeze(0).contiguous() for m in memory))
        return output[0], (h[0], c[0])


class ActorAndCriticApart(Design):
    """A memory for the actor and one for the critic."""

    def build(self):
        self.for_actor, self.for_critic = nn.GRUCell(self.features, 16), nn.GRUCell(self.features, 16)

    def step(self, x, memory):
        actor, critic = self.for_actor(x, memory[0]), self.for_critic(x, memory[1])
        return torch.cat([actor, critic], -1), (actor, critic)

    def heads(self, hidden):
        actor, critic = hidden.chunk(2, -1)
        return self.actor(actor), self.critic(critic).squeeze(-1)


class BurnIn(Design):
    """The first steps of a segment warm the memory up, and are not learned through."""

    burn_in = 4

    def before_step(self, memory, t, T):
        return tuple(m.detach() for m in memory) if t == self.burn_in else memory


class TruncatedAsDeclared(Design):
    """Truncated backpropagation through time, on purpose."""

    tbptt_steps = 16

    def before_step(self, memory, t, T):
        return tuple(m.detach() for m in memory) if t and t % self.tbptt_steps == 0 else memory


class AnyArguments(Design):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


class WrapperWithAnyArguments(Small):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


class RunningMaximum(Design):
    """Max pooling over the episode."""

    def build(self):
        self.mix = nn.Linear(self.features, self.hidden)

    def blank(self, rows):
        return (self.critic.weight.new_zeros(rows, self.features),)

    def step(self, x, memory):
        most = torch.maximum(memory[0], x)
        return self.mix(most).tanh(), (most,)


class FastWeights(Design):
    """A matrix that is written and read, as in linear attention."""

    def build(self):
        self.key, self.value, self.query = (nn.Linear(self.features, 8) for _ in range(3))
        self.out = nn.Linear(8, self.hidden)

    def blank(self, rows):
        return (self.critic.weight.new_zeros(rows, 8, 8),)

    def step(self, x, memory):
        key, value, query = self.key(x).softmax(-1), self.value(x), self.query(x)
        matrix = 0.9 * memory[0] + key.unsqueeze(2) * value.unsqueeze(1)
        return self.out((query.unsqueeze(1) @ matrix).squeeze(1)).tanh(), (matrix,)


class CountsItsSteps(Design):
    """Knows how long the episode is, as a whole number."""

    def build(self):
        self.cell = nn.GRUCell(self.features + 1, self.hidden)

    def blank(self, rows):
        return self.critic.weight.new_zeros(rows, self.hidden), torch.zeros(rows, 1, dtype=torch.long)

    def step(self, x, memory):
        h = self.cell(torch.cat([x, (memory[1] / 50).to(x.dtype)], -1), memory[0])
        return h, (h, memory[1] + 1)


class ParallelScan(Design):
    """A linear recurrence: sequential when acting, in closed form when learning."""

    def build(self):
        self.gate, self.value = nn.Linear(self.features, self.hidden), nn.Linear(self.features, self.hidden)

    def blank(self, rows):
        return (self.critic.weight.new_zeros(rows, self.hidden),)

    def step(self, x, memory):
        keep = self.gate(x).sigmoid()
        h = keep * memory[0] + (1 - keep) * self.value(x)
        return h.tanh(), (h,)

    def run(self, xs, starts, memory, actions=None):
        if len(xs) == 1:
            return super().run(xs, starts, memory, actions)
        keep = self.gate(xs).sigmoid()
        new = (1 - keep) * self.value(xs)
        keep = keep.masked_fill(starts.unsqueeze(-1), 0)
        log_keep = keep.clamp(min=1e-30).log().cumsum(0)  # products of what is kept, from the beginning
        steps = torch.arange(len(xs))
        lower = (steps.view(-1, 1) >= steps).view(len(xs), len(xs), 1, 1)
        weights = (log_keep.unsqueeze(1) - log_keep.unsqueeze(0)).masked_fill(~lower, -torch.inf).exp()
        episode = starts.long().cumsum(0)
        same = (episode.unsqueeze(1) == episode.unsqueeze(0)).unsqueeze(-1)
        hs = (weights * same * new.unsqueeze(0)).sum(1)
        hs = hs + torch.where((episode == 0).unsqueeze(-1), log_keep.exp() * memory[0], 0.0)
        return hs.tanh(), (hs[-1],)


class NormalisedCell(Design):
    """Layer normalisation and a skip connection inside the recurrence."""

    def build(self):
        self.norm, self.inner = nn.LayerNorm(self.hidden), nn.Linear(self.features + self.hidden, self.hidden)

    def blank(self, rows):
        return (self.critic.weight.new_zeros(rows, self.hidden),)

    def step(self, x, memory):
        h = self.norm(memory[0] + self.inner(torch.cat([x, memory[0]], -1)).tanh())
        return h, (h,)


class StopsTheCriticsGradient(Design):
    """Only the actor trains the trunk: a stop-gradient within a step, on purpose."""

    def heads(self, hidden):
        return self.actor(hidden), self.critic(hidden.detach()).squeeze(-1)


class FrozenFeatures(Design):
    """Random features that nothing trains."""

    def encode(self, observations):
        return super().encode(observations).detach()

    def build(self):
        super().build()
        self.encoder.requires_grad_(False)


class TwoTimeScales(Design):
    """Two stacked cells, the second with a leak."""

    def build(self):
        self.lower, self.upper = nn.GRUCell(self.features, 16), nn.GRUCell(16, 16)

    def step(self, x, memory):
        lower = self.lower(x, memory[0])
        upper = 0.9 * memory[1] + 0.1 * self.upper(lower, memory[1])
        return upper, (lower, upper)


class SeedsStyle(LSTMWrapper):
    """A forward in the style of the wrapper's example, which sets no shape fields itself."""

    def __init__(self, env, hidden_size=16, **kwargs):
        super().__init__(env, input_size=12, hidden_size=hidden_size, **kwargs)
        self.encoder = nn.Linear(self.env_spec.single_observation_space.shape[0], 12)
        self.actor, self.critic = nn.Linear(hidden_size, self.action_space.logits), nn.Linear(hidden_size, 1)

    def forward(self, td, state=None, action=None):
        observations = td["env_obs"]
        B, TT = observations.shape[0], 1 if action is None else observations.shape[1]
        hidden = self.encoder(observations.reshape(B * TT, -1).to(self.encoder.weight.dtype)).relu()
        lstm_h, lstm_c, env_id = self._manage_lstm_state(td, B, TT, observations.device)
        lstm_state = (lstm_h, lstm_c)
        lstm_output, (new_h, new_c) = self.lstm(hidden.view(B, TT, -1).transpose(0, 1), lstm_state)
        self._store_lstm_state(new_h, new_c, env_id)
        hidden = lstm_output.transpose(0, 1).reshape(B * TT, -1)
        logits, value = self.actor(hidden), self.critic(hidden)
        return (
            self.forward_inference(td, logits, value)
            if action is None
            else self.forward_training(td, action, logits, value)
        )


class ProjectedModule(nn.Module):
    """A plain module with a projected LSTM."""

    def __init__(self, env):
        super().__init__()
        self.lstm = nn.LSTM(5, 24, proj_size=16)
        self.actor, self.critic = nn.Linear(16, 4), nn.Linear(16, 1)

    def forward(self, obs, state):
        hidden, state = self.lstm(obs.unsqueeze(0), state)
        return self.actor(hidden[0]), self.critic(hidden[0]), state


class TwoMemoriesModule(nn.Module):
    """A plain module with one LSTM for the actor and one for the critic."""

    def __init__(self, env):
        super().__init__()
        self.for_actor, self.for_critic = nn.LSTMCell(5, 16), nn.LSTMCell(5, 16)
        self.actor, self.critic = nn.Linear(16, 4), nn.Linear(16, 1)

    def forward(self, obs, state):
        actor, critic = self.for_actor(obs, state[0]), self.for_critic(obs, state[1])
        return self.actor(actor[0]), self.critic(critic[0]), (actor, critic)


class LearnedStartModule(nn.Module):
    """A plain module whose initial state is a parameter."""

    def __init__(self, env):
        super().__init__()
        self.cell, self.h0 = nn.GRUCell(5, 16), nn.Parameter(torch.randn(16))
        self.actor, self.critic = nn.Linear(16, 4), nn.Linear(16, 1)

    def initial_state(self, rows):
        return self.h0.expand(rows, -1)

    def forward(self, obs, state, starts):
        h = self.cell(obs, torch.where(starts.view(-1, 1), self.h0, state))
        return self.actor(h), self.critic(h), h


class FrameStackModule(nn.Module):
    """A plain module without any recurrent layer."""

    def __init__(self, env):
        super().__init__()
        self.mix = nn.Linear(15, 16)
        self.actor, self.critic = nn.Linear(16, 4), nn.Linear(16, 1)

    def forward(self, obs, state=None):
        frames = obs.new_zeros(len(obs), 2, 5) if state is None else state
        frames = torch.cat([frames, obs.unsqueeze(1)], 1)
        hidden = self.mix(frames.flatten(1)).tanh()
        return self.actor(hidden), self.critic(hidden), frames[:, 1:]


RIGHT = [
    Design,
    FrameStack,
    WindowAttention,
    Clockwork,
    SlowOnly,
    Leaky,
    LearnedStart,
    LearnedStartAtFlags,
    PreviousAction,
    Projected,
    ActorAndCriticApart,
    BurnIn,
    TruncatedAsDeclared,
    AnyArguments,
    WrapperWithAnyArguments,
    RunningMaximum,
    FastWeights,
    CountsItsSteps,
    ParallelScan,
    NormalisedCell,
    StopsTheCriticsGradient,
    FrozenFeatures,
    TwoTimeScales,
    SeedsStyle,
    ProjectedModule,
    TwoMemoriesModule,
    LearnedStartModule,
    FrameStackModule,
]
