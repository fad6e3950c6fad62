"""Right designs whose memory is of a rare kind: a clock, counts, steps of a staircase, none at all."""

import torch
from audit.broken.wrapper import Small
from audit.designs.base import Design
from torch import nn
from torch.utils.checkpoint import checkpoint


class OnlyAClock(Design):
    """Remembers the time since its episode began, and nothing that it saw."""

    def build(self):
        self.mix = nn.Linear(self.features + 2, self.hidden)

    def blank(self, rows):
        return (self.critic.weight.new_zeros(rows, 1),)

    def step(self, x, memory):
        time = memory[0] + 1
        return self.mix(torch.cat([x, (0.3 * time).sin(), (0.1 * time).cos()], -1)).tanh(), (time,)


class RemembersTheFirstStep(Design):
    """Remembers what it saw when its episode began, which later steps do not change."""

    def build(self):
        self.mix = nn.Linear(2 * self.features, self.hidden)

    def blank(self, rows):
        weight = self.critic.weight
        return weight.new_zeros(rows, self.features), weight.new_zeros(rows, 1)

    def step(self, x, memory):
        first = torch.where(memory[1] > 0.5, memory[0], x)
        return self.mix(torch.cat([x, first], -1)).tanh(), (first, torch.ones_like(memory[1]))


class QuantisedStraightThrough(Design):
    """Memory is rounded, and gradients pass as if it were not."""

    def step(self, x, memory):
        h, c = self.cell(x, memory)
        return h, tuple(m + ((m * 32).round() / 32 - m).detach() for m in (h, c))


class PreviousActionAndReward(Small):
    """Both are left out where an episode starts, and are inputs everywhere else."""

    def __init__(self, env, **kwargs):
        super().__init__(env, previous=("action", "reward"), **kwargs)


class BesideTheWrapper(Small):
    """Its memory is the mean of what it saw, in the wrapper's store; the wrapper's own LSTM is not used."""

    def forward(self, td, state=None, action=None):
        rows, steps = (td.batch_size[0], 1) if action is None else td.batch_size
        memory, _, ids = self._manage_lstm_state(td, rows, steps, "cpu")
        starts = (td["dones"] | td["truncateds"]).view(rows, steps)
        xs = self.encode_observations(td["env_obs"].flatten(0, td.batch_dims - 1)).view(rows, steps, -1)
        past, outputs = memory[-1], []
        for t in range(steps):
            past = past.masked_fill(starts[:, t].view(-1, 1), 0)
            past = 0.7 * past + 0.3 * nn.functional.pad(xs[:, t], (0, past.shape[1] - xs.shape[2]))
            outputs.append(past)
        kept = torch.cat([memory[:-1], past.unsqueeze(0)])
        self._store_lstm_state(kept, torch.zeros_like(kept), ids)
        logits, value = self.decode_actions(torch.stack(outputs, 1).flatten(0, 1))
        if action is None:
            return self.forward_inference(td, logits, value)
        return self.forward_training(td, action, logits, value)


class Histogram(Design):
    """Counts how often each feature was the largest: whole numbers, without a gradient."""

    def build(self):
        self.mix = nn.Linear(2 * self.features, self.hidden)

    def blank(self, rows):
        return (torch.zeros(rows, self.features, dtype=torch.long),)

    def step(self, x, memory):
        counts = memory[0] + nn.functional.one_hot(x.argmax(-1), self.features)
        return self.mix(torch.cat([x, counts.to(x.dtype) / 10], -1)).tanh(), (counts,)


class Recomputed(Design):
    """Learning keeps no activations, and computes each step again in the backward pass."""

    def step(self, x, memory):
        if not torch.is_grad_enabled():
            return super().step(x, memory)
        h, c = checkpoint(lambda x, *memory: self.cell(x, memory), x, *memory, use_reentrant=False)
        return h, (h, c)


class NoMemory(nn.Module):
    """A feed-forward policy that says so."""

    def __init__(self, env):
        super().__init__()
        self.actor, self.critic = nn.Linear(5, 4), nn.Linear(5, 1)

    def has_memory(self):
        return False

    def initial_state(self, rows):
        return ()

    def forward(self, obs, state):
        return self.actor(obs), self.critic(obs), state


class LeakyCell(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, h, weight):
        y = (x + h @ weight).tanh()
        ctx.save_for_backward(h, weight, y)
        return (h + y) / 2

    @staticmethod
    def backward(ctx, gradient):
        h, weight, y = ctx.saved_tensors
        inner = gradient / 2 * (1 - y * y)
        return inner, gradient / 2 + inner @ weight.t(), h.t() @ inner


class OwnBackward(Design):
    """A cell whose gradient is written by hand."""

    def build(self):
        self.widen, self.weight = nn.Linear(self.features, self.hidden), nn.Parameter(0.2 * torch.randn(16, 16))

    def blank(self, rows):
        return (self.critic.weight.new_zeros(rows, self.hidden),)

    def step(self, x, memory):
        h = LeakyCell.apply(self.widen(x), memory[0], self.weight)
        return h, (h,)


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class BinaryFeatures(Design):
    """Trained straight through, by a backward pass that is not the derivative on purpose."""

    def encode(self, observations):
        return Sign.apply(self.encoder(observations.to(self.encoder.weight.dtype)))


class ScaledTrunk(Design):
    """The critic trains the trunk at half strength."""

    def heads(self, hidden):
        return self.actor(hidden), self.critic(0.5 * hidden + 0.5 * hidden.detach()).squeeze(-1)


RIGHT_RARE = [
    RemembersTheFirstStep,
    OnlyAClock,
    QuantisedStraightThrough,
    PreviousActionAndReward,
    BesideTheWrapper,
    Histogram,
    Recomputed,
    NoMemory,
    OwnBackward,
    BinaryFeatures,
    ScaledTrunk,
]
