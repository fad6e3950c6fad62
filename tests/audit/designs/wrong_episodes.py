"""Designs that are wrong where an episode starts, each in another way."""

import torch
from audit.designs.base import Design
from audit.designs.right import PreviousAction, WindowAttention
from torch import nn


class OnlyWhenAllStart(Design):
    """Memory is cleared when all rows start at once."""

    def clear(self, memory, start):
        return super().clear(memory, start & start.all())


class LearningClearsLate(Design):
    """Right in acting; in a segment, memory is cleared after the first step of an episode."""

    def run(self, xs, starts, memory, actions=None):
        if actions is not None:
            starts = torch.cat([starts[:1] & False, starts[:-1]])
        return super().run(xs, starts, memory, actions)


class LearningClearsEarly(Design):
    def run(self, xs, starts, memory, actions=None):
        if actions is not None:
            starts = torch.cat([starts[1:], starts[:1] & False])
        return super().run(xs, starts, memory, actions)


class LearningIgnoresTruncation(Design):
    def starts(self, td):
        return td["dones"] if td.batch_dims == 2 else super().starts(td)


class FirstStartOnly(Design):
    """Only the first start of a row in a segment is seen."""

    def run(self, xs, starts, memory, actions=None):
        return super().run(xs, starts & (starts.long().cumsum(0) == 1), memory, actions)


class ClearsEverAfter(Design):
    """After a start, memory is cleared at all later steps of the segment too."""

    def run(self, xs, starts, memory, actions=None):
        return super().run(xs, starts.long().cumsum(0) > 0, memory, actions)


class ClearsHalfTheUnits(Design):
    def clear(self, memory, start):
        cleared = super().clear(memory, start)
        return tuple(torch.cat([new[:, :8], old[:, 8:]], 1) for new, old in zip(cleared, memory, strict=True))


class FadesInsteadOfClearing(Design):
    def clear(self, memory, start):
        return tuple(torch.where(start.view(-1, 1), 0.05 * m, m) for m in memory)


class ClearsTheNextRow(Design):
    def clear(self, memory, start):
        return super().clear(memory, start.roll(1, 0))


class TakesItsNeighboursMemory(Design):
    """A row that starts gets the memory of another row."""

    def clear(self, memory, start):
        return tuple(torch.where(start.view(-1, 1), m.roll(1, 0), m) for m in memory)


class GreedyPreviousAction(PreviousAction):
    """When learning, the previous action is the most probable one, not the one that was taken."""

    def run(self, xs, starts, memory, actions=None):
        if actions is None:
            return super().run(xs, starts, memory)
        outputs = []
        for t in range(len(xs)):
            h, memory = self.step(xs[t], self.clear(memory, starts[t]))
            outputs.append(h)
            memory = self.after_action(memory, self.actor(h).argmax(-1))
        return torch.stack(outputs), memory


class RemembersTheGreedyAction(PreviousAction):
    """When acting, it remembers the most probable action, not the one that was taken."""

    def after_action(self, memory, action):
        if not self.__dict__.get("learning"):
            action = self.actor(memory[0]).argmax(-1)
        return super().after_action(memory, action)

    def forward(self, td, state=None, action=None):
        self.learning = action is not None
        return super().forward(td, state, action)


class WindowOverTheSegment(WindowAttention):
    """Learning attends to the last steps of the segment, whatever episode they belong to."""

    def run(self, xs, starts, memory, actions=None):
        return super().run(xs, starts & (len(xs) == 1), memory, actions)


class ClearsTheCellAfterTheFirst(Design):
    """h is cleared before the first observation, c after it."""

    def blank(self, rows):
        weight = self.critic.weight
        return weight.new_zeros(rows, 16), weight.new_zeros(rows, 16), weight.new_zeros(rows, 1)

    def clear(self, memory, start):
        h = torch.where(start.view(-1, 1), 0.0, memory[0])
        c = torch.where(memory[2] > 0.5, 0.0, memory[1])
        return h, c, start.view(-1, 1).to(h.dtype)

    def step(self, x, memory):
        h, c = self.cell(x, memory[:2])
        return h, (h, c, memory[2])


class EvenRowsOnly(Design):
    """Starts of odd rows are lost in a segment."""

    def run(self, xs, starts, memory, actions=None):
        if actions is not None and starts.shape[1] > 8:
            starts = starts & (torch.arange(starts.shape[1]) % 2 == 0)
        return super().run(xs, starts, memory, actions)


class CleanRLWithoutDone(nn.Module):
    """CleanRL's call, which ignores `done`."""

    def __init__(self, envs):
        super().__init__()
        self.network = nn.Linear(5, 12)
        self.lstm = nn.LSTM(12, 16)
        self.actor, self.critic = nn.Linear(16, 4), nn.Linear(16, 1)

    def keep(self, state, done):
        return state

    def get_states(self, x, lstm_state, done):
        hidden = self.network(x).relu()
        rows = lstm_state[0].shape[1]
        hidden, done = hidden.reshape(-1, rows, 12), done.reshape(-1, rows)
        outputs = []
        for h, d in zip(hidden, done, strict=True):
            h, lstm_state = self.lstm(h.unsqueeze(0), tuple(self.keep(s, d.view(1, -1, 1)) for s in lstm_state))
            outputs.append(h)
        return torch.cat(outputs).flatten(0, 1), lstm_state

    def get_value(self, x, lstm_state, done):
        return self.critic(self.get_states(x, lstm_state, done)[0])

    def get_action_and_value(self, x, lstm_state, done, action=None):
        hidden, lstm_state = self.get_states(x, lstm_state, done)
        choice = torch.distributions.Categorical(logits=self.actor(hidden))
        action = choice.sample() if action is None else action
        return action, choice.log_prob(action), choice.entropy(), self.critic(hidden), lstm_state


class CleanRLClearsTheWrongRows(CleanRLWithoutDone):
    """`d` in place of `1 - d`."""

    def keep(self, state, done):
        return done * state


class FirstObservationMasked(Design):
    """Where an episode starts, the mask clears the features as well as the memory."""

    def run(self, xs, starts, memory, actions=None):
        return super().run(xs.masked_fill(starts.unsqueeze(-1), 0), starts, memory, actions)


class LearningKeepsTheCell(Design):
    """Inside a segment, a start clears h and not c."""

    def run(self, xs, starts, memory, actions=None):
        self.learning = actions is not None
        return super().run(xs, starts, memory, actions)

    def clear(self, memory, start):
        h, c = super().clear(memory, start)
        return (h, memory[1]) if self.learning else (h, c)


class PositionsOfTheSegment(Design):
    """Acting counts the steps of the episode, learning those of the segment."""

    def build(self):
        super().build()
        self.positions = nn.Embedding(256, self.features)

    def blank(self, rows):
        return *super().blank(rows), torch.zeros(rows, dtype=torch.long)

    def before_step(self, memory, t, T):
        return memory if T == 1 else (*memory[:2], torch.full_like(memory[2], t))

    def step(self, x, memory):
        h, c = self.cell(x + self.positions(memory[2].clamp(max=255)), memory[:2])
        return h, (h, c, memory[2] + 1)
