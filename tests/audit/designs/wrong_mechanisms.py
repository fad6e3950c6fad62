"""Plain modules, each with one fault whose mechanism the audit names by an experiment of its own."""

import torch
from torch import nn


class Sequences(nn.Module):
    """Right: an LSTM that takes single steps [B, …] and sequences [B, T, …]."""

    hidden = 8

    def __init__(self, env):
        super().__init__()
        self.encoder = nn.Linear(env.single_observation_space.shape[0], self.hidden)
        self.cell = nn.LSTMCell(self.hidden, self.hidden)
        self.actor = nn.Linear(self.hidden, int(env.single_action_space.n))
        self.critic = nn.Linear(self.hidden, 1)
        self.calls = 0

    def initial_state(self, rows):
        return torch.zeros(rows, self.hidden), torch.zeros(rows, self.hidden)

    def forward(self, obs, state, starts):
        acting = obs.dim() == 2
        self.calls += 1
        x = self.encoder(obs.float()).tanh()
        x, starts = (x.unsqueeze(1), starts.unsqueeze(1)) if acting else (x, starts)
        outputs, values = [], []
        for t in range(x.shape[1]):
            before, state = state, self.clear(state, starts[:, t])
            state = self.cell(*self.inputs(x[:, t], state, t, acting))
            outputs.append(state[0])
            values.append(self.critic(self.seen_by_critic(before, state)))
        y, value = torch.stack(outputs, 1), torch.stack(values, 1)
        if acting:
            return self.actor(y[:, 0]), value[:, 0], self.stored(state)
        return self.actor(y), value, state

    # What a mutant gets wrong.

    def clear(self, state, start):
        return tuple(torch.where(start.bool().unsqueeze(-1), 0, part) for part in state)

    def inputs(self, x, state, t, acting):
        return x, state

    def seen_by_critic(self, before, after):
        return after[0]

    def stored(self, state):
        return state


class HiddenAndCellStoredSwapped(Sequences):
    def stored(self, state):
        return state[1], state[0]


class CellNeverCleared(Sequences):
    def clear(self, state, start):
        return super().clear(state, start)[0], state[1]


class FadesAtAStart(Sequences):
    def clear(self, state, start):
        return tuple(torch.where(start.bool().unsqueeze(-1), 0.1 * part, part) for part in state)


class CriticReadsBeforeTheStart(Sequences):
    def seen_by_critic(self, before, after):
        return before[0] + after[0]


class HiddenDetachedBetweenSteps(Sequences):
    def inputs(self, x, state, t, acting):
        return x, (state[0].detach(), state[1])


class HalvesTheGradient(Sequences):
    def inputs(self, x, state, t, acting):
        return x, tuple(0.5 * part + 0.5 * part.detach() for part in state)


class DetachedInLargeBatches(Sequences):
    def inputs(self, x, state, t, acting):
        return x, tuple(part.detach() for part in state) if len(x) > 8 else state


class CountsCalls(Sequences):
    def inputs(self, x, state, t, acting):
        return x * (1 + self.calls % 3) if acting else x, state


class CountsStepsOfTheSegment(Sequences):
    def inputs(self, x, state, t, acting):
        return x + t / 10, state


class SkipsEverySecondStep(Sequences):
    def inputs(self, x, state, t, acting):
        self.last = x if t % 2 == 0 else self.last
        return self.last, state


class ClearsTheGivenState(Sequences):
    """In place, so that the copy of the caller is cleared too."""

    def clear(self, state, start):
        for part in state:
            part.detach()[start.bool()] = 0
        return state


class MaskedWindow(Sequences):
    """Right: attention over the last four steps. A start sets the number of valid ones to 0, and leaves the rest."""

    def initial_state(self, rows):
        return torch.zeros(rows, 4, self.hidden), torch.zeros(rows)

    def clear(self, state, start):
        return state[0], torch.where(start.bool(), 0, state[1])

    def forward(self, obs, state, starts):
        acting = obs.dim() == 2
        x = self.encoder(obs.float()).tanh()
        x, starts = (x.unsqueeze(1), starts.unsqueeze(1)) if acting else (x, starts)
        outputs = []
        for t in range(x.shape[1]):
            window, valid = self.clear(state, starts[:, t])
            state = torch.cat([window[:, 1:], x[:, t : t + 1]], 1), valid + 1
            hidden = torch.arange(4) < 4 - state[1].unsqueeze(-1)
            weights = (state[0] @ x[:, t].unsqueeze(-1)).squeeze(-1).masked_fill(hidden, -torch.inf).softmax(-1)
            outputs.append((weights.unsqueeze(-1) * state[0]).sum(1))
        y = torch.stack(outputs, 1)
        y = y[:, 0] if acting else y
        return self.actor(y), self.critic(y), state


class WindowKeepsItsLastPlace(Sequences):
    """A window of the last three features; its newest place is not cleared where an episode starts."""

    def initial_state(self, rows):
        return torch.zeros(rows, 3, self.hidden)

    def forward(self, obs, state, starts):
        kept = torch.arange(3).view(1, 3, 1) == 2
        state = torch.where(starts.view(-1, 1, 1) & ~kept, 0.0, state)
        state = torch.cat([state[:, 1:], self.encoder(obs.float()).tanh().unsqueeze(1)], 1)
        y = state.sum(1)
        return self.actor(y), self.critic(y), state


class CentredInLargeBatches(Sequences):
    """The value is centred over a batch of more than eight."""

    def forward(self, obs, state, starts):
        logits, value, state = super().forward(obs, state, starts)
        return logits, value - value.mean() if value.numel() > 8 else value, state


class SwapsSquares(Sequences):
    """Rows are taken for steps where there are as many."""

    def forward(self, obs, state, starts):
        logits, value, state = super().forward(obs, state, starts)
        if obs.dim() == 3 and obs.shape[0] == obs.shape[1] > 1:
            logits, value = logits.transpose(0, 1), value.transpose(0, 1)
        return logits, value, state
