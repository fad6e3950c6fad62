"""A recording environment and policy: they show what a training loop plays, and what it learns from.

Every observation is unique, so each call of the policy shows which step of which row it sees, with which state and
episode start.
"""

# B rows, T steps

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.distributions import Categorical

ROWS, SIZE, ACTIONS, HIDDEN = 4, 6, 3, 8
STEPS = 400  # of each row, after which the loop is stopped
CLOSE = 1e-5  # largest difference between states, or logits, that are the same
ENDS = ("termination", "truncation")
NOT_CLEARED = "memory is not cleared when an episode starts"
ZERO_INSIDE = "the state is not carried from step to step: it is zero inside an episode"
MOVES_TWICE = "memory moves on twice for one observation: the state of a second call with it is carried on"
NEXT_OBSERVATION = "each observation is learned with the start and the state of the step before: it is stored too late"


class EndOfAudit(Exception):  # noqa: N818
    """Raised by the environment when enough was played."""


class Step(NamedTuple):
    """One step of one row, as it was played."""

    row: int
    number: int
    start: bool  # the observation is the first of an episode
    ended_by: str = ""  # for a start: how the episode before it ended, one of ENDS


class Played(NamedTuple):
    """One acting call's part for one row."""

    before: Tensor  # the state [2, HIDDEN] that the step began with: zero at the start of an episode
    after: Tensor  # the state that it returned
    action: int | None
    logits: Tensor


class RecordingEnv:
    """A vectorised environment in Gymnasium's manner, with unique observations and random episode ends."""

    metadata: dict[str, Any] = {"autoreset_mode": "same_step"}

    def __init__(self) -> None:
        self.num_envs = ROWS
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (SIZE,), np.float32)
        self.single_action_space = spaces.Discrete(ACTIONS)
        self.observation_space = spaces.Box(-np.inf, np.inf, (ROWS, SIZE), np.float32)
        self.action_space = spaces.MultiDiscrete([ACTIONS] * ROWS)
        self.steps: dict[bytes, Step] = {}
        self._random, self._number = np.random.default_rng(0), 0

    def reset(self, **_: Any) -> tuple[np.ndarray, dict]:
        return self._observe(np.ones(ROWS, bool), None), {}

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        if self._number >= STEPS:
            raise EndOfAudit
        ends = self._random.random(ROWS) < 0.12
        terminated = ends & (self._random.random(ROWS) < 0.5)
        return (
            self._observe(ends, terminated),
            self._random.normal(size=ROWS).astype(np.float32),
            terminated,
            ends & ~terminated,
            {},
        )

    def close(self) -> None:
        pass

    def _observe(self, starts: np.ndarray, terminated: np.ndarray | None) -> np.ndarray:
        observations = self._random.normal(size=(ROWS, SIZE)).astype(np.float32)
        for row in range(ROWS):
            ended_by = "" if terminated is None or not starts[row] else ENDS[0 if terminated[row] else 1]
            self.steps[observations[row].tobytes()] = Step(row, self._number, bool(starts[row]), ended_by)
        self._number += 1
        return observations


class RecordingPolicy(nn.Module):
    """A right LSTM policy that notes what it is called with.

    `policy(obs, state, starts)` returns (logits, value, state), for one step [B, …] or sequences [T, B, …];
    `get_action_and_value(x, lstm_state, done, action=None)` and `get_value` are as in CleanRL's script.
    """

    def __init__(self, env: RecordingEnv) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.env, self.hidden_size = env, HIDDEN
        self.lstm = nn.LSTM(SIZE, HIDDEN)
        self.actor, self.critic = nn.Linear(HIDDEN, ACTIONS), nn.Linear(HIDDEN, 1)
        self.played: dict[Step, Played] = {}
        self.by_row: defaultdict[int, list[tuple[Step, Played]]] = defaultdict(list)
        self.last: dict[int, Step] = {}  # the step each row acted at last
        self.problems: defaultdict[str, Counter[str]] = defaultdict(Counter)  # texts by question
        self.seen: Counter[str] = Counter()  # cases by question
        self.replay_error = 0.0
        self.again: dict[int, Tensor] = {}  # the state that a second call with the same observation returned, by row
        self.zeroed: set[int] = set()  # numbers of the steps that acted from a zero state inside an episode
        self._weights = self._weight_version()

    def initial_state(self, rows: int) -> tuple[Tensor, Tensor]:
        zeros = torch.zeros(1, rows, HIDDEN)
        return zeros, zeros.clone()

    def forward(self, obs: Tensor, state: Any = None, starts: Tensor | None = None) -> tuple[Tensor, Tensor, Any]:
        sequence = obs if obs.dim() == 3 else obs.unsqueeze(0)
        rows = sequence.shape[1]
        flags = torch.zeros(sequence.shape[:2]) if starts is None else starts.reshape(sequence.shape[:2])
        hidden, after = self._run(sequence, self.initial_state(rows) if state is None else state, flags, None)
        logits, value = self.actor(hidden), self.critic(hidden).squeeze(-1)
        return (logits, value, after) if obs.dim() == 3 else (logits[0], value[0], after)

    def get_value(self, x: Tensor, lstm_state: Any, done: Tensor) -> Tensor:
        rows = lstm_state[0].shape[1]
        hidden, _ = self._unroll(x.reshape(-1, rows, SIZE), lstm_state, done.reshape(-1, rows))
        return self.critic(hidden).reshape(-1, 1)

    def get_action_and_value(self, x: Tensor, lstm_state: Any, done: Tensor, action: Tensor | None = None) -> tuple:
        rows = lstm_state[0].shape[1]
        actions = None if action is None else action.reshape(-1, rows)
        hidden, after = self._run(x.reshape(-1, rows, SIZE), lstm_state, done.reshape(-1, rows), actions)
        distribution = Categorical(logits=self.actor(hidden).flatten(0, 1))
        if action is None:
            action = distribution.sample()
            for row, observation in enumerate(x.reshape(rows, SIZE)):
                step = self._step_of(observation)
                if step in self.played:
                    self.played[step] = self.played[step]._replace(action=int(action[row]))
        value = self.critic(hidden).reshape(-1, 1)
        return action, distribution.log_prob(action.flatten()), distribution.entropy(), value, after

    def _unroll(self, sequence: Tensor, state: Any, flags: Tensor) -> tuple[Tensor, Any]:
        outputs = []
        for x, flag in zip(sequence, flags, strict=True):
            state = tuple(torch.where(flag.bool().view(1, -1, 1), 0.0, part) for part in state)
            output, state = self.lstm(x.unsqueeze(0), state)
            outputs.append(output)
        return torch.cat(outputs), state

    def _run(self, sequence: Tensor, state: Any, flags: Tensor, actions: Tensor | None) -> tuple[Tensor, Any]:
        hidden, after = self._unroll(sequence, state, flags)
        steps = [[self._step_of(x) for x in line] for line in sequence.detach()]
        known = [step for line in steps for step in line if step is not None]
        self.seen["loop_observations"] += len(known)
        if len(known) < sequence.shape[0] * sequence.shape[1]:
            self._note("loop_observations", "the policy is given observations that the environment did not return")
        elif len(sequence) == 1 and actions is None and not any(step in self.played for step in known):
            self._acts(steps[0], state, flags[0], after, self.actor(hidden).detach()[0])
        else:
            self._learns(steps, state, flags, actions, self.actor(hidden).detach())
            if len(sequence) == 1:
                self.again.update((step.row, _row(after, column)) for column, step in enumerate(steps[0]) if step)
        return hidden, after

    def _acts(self, steps: list, state: Any, flags: Tensor, after: Any, logits: Tensor) -> None:
        for column, step in enumerate(steps):
            given = _row(state, column)
            used = given * (0.0 if flags[column] else 1.0)
            before = self.played[self.last[step.row]].after if step.row in self.last else torch.zeros_like(given)
            expected = before * (0.0 if step.start else 1.0)
            self.seen["loop_acting"] += 1
            if not _close(used, expected):
                if step.start and _close(used, before):
                    self._note("loop_acting", f"{NOT_CLEARED} after {step.ended_by or 'reset()'}")
                elif not used.any():
                    self._note("loop_acting", ZERO_INSIDE)
                    self.zeroed.add(step.number)
                elif step.row in self.again and _close(used, self.again[step.row]):
                    self._note("loop_acting", MOVES_TWICE)
                else:
                    self._note("loop_acting", "a row acts with a state that is not its own from the step before")
            self.played[step] = Played(used.clone(), _row(after, column), None, logits[column].clone())
            self.by_row[step.row].append((step, self.played[step]))
            self.last[step.row] = step

    def _learns(self, steps: list, state: Any, flags: Tensor, actions: Tensor | None, logits: Tensor) -> None:
        not_updated = self._weight_version() == self._weights  # learning must give the logits of acting
        for column in range(len(steps[0])):
            line = [row[column] for row in steps]
            self.seen["loop_order"] += 1
            if any(b != a and (b.row != a.row or b.number != a.number + 1) for a, b in pairwise(line)):
                self._note(
                    "loop_order", "a sequence is not made of consecutive steps of one row: rows and steps are mixed"
                )
                continue
            used = _row(state, column) * (0.0 if flags[0, column] else 1.0)
            shifted = _misplaced_starts([bool(flag) for flag in flags[:, column]], [step.start for step in line])
            if shifted.endswith("too late") and self._had(line[0].row, line[0].number - 1, used):
                self._note("loop_order", NEXT_OBSERVATION)
                continue
            if shifted:
                self._note("loop_starts", shifted)
            self._check_start_state(line[0], used)
            for number, step in enumerate(line):
                # At the first step, a state of zeros does what a flag does; `_check_start_state` judges the state.
                flag = bool(flags[number, column]) or (number == 0 and step.start)
                self._check_step(
                    step, step.start if shifted else flag, None if actions is None else actions[number, column]
                )
                if not_updated and step in self.played:
                    self.seen["loop_replay"] += 1
                    apart = float((logits[number, column] - self.played[step].logits).abs().max())
                    self.replay_error = max(self.replay_error, apart)
                    if apart > CLOSE:
                        self._note("loop_replay", "before any update, learning gives other logits than acting gave")

    def _check_start_state(self, first: Step, used: Tensor) -> None:
        if first not in self.played:
            return
        self.seen["loop_start_state"] += 1
        expected = self.played[first].before
        if _close(used, expected):
            return
        if not used.any():
            self._note(
                "loop_start_state", "a sequence is learned from a zero state, not from the one stored while acting"
            )
        elif _close(used, self.played[first].after):
            self._note("loop_start_state", "the stored state is one step late: the one after the step, not before it")
        elif any(_close(used, other.before) for step, other in self.played.items() if step.number == first.number):
            self._note("loop_start_state", "a sequence is learned from the state of another row")
        elif later := next((n for n in range(1, STEPS) if self._had(first.row, first.number + n, used)), 0):
            self._note("loop_start_state", f"a sequence is learned from the state that its row had {later} steps later")
        else:
            self._note("loop_start_state", "a sequence is learned from a state that no row had at its first step")

    def _had(self, row: int, number: int, state: Tensor) -> bool:
        """Whether this row had this state before its step of this number, or kept it from the one before."""
        return any(
            _close(state, part)
            for step, played in self.by_row[row]
            for part, at in ((played.before, step.number), (played.after, step.number + 1))
            if at == number
        )

    def _check_step(self, step: Step, flag: bool, action: Any) -> None:
        self.seen["loop_starts"] += 1
        if flag != step.start and step.number > 0:  # before the first step there is nothing to clear
            text = (
                "an episode start is not passed to learning"
                if step.start
                else "learning is given an episode start where no episode starts"
            )
            self._note("loop_starts", text)
        played = self.played.get(step)
        if action is not None and played is not None and played.action is not None:
            self.seen["loop_actions"] += 1
            if int(action) != played.action:
                self._note("loop_actions", "learning judges an action that was not taken at this step")

    def _step_of(self, observation: Tensor) -> Step | None:
        return self.env.steps.get(observation.detach().to(torch.float32).numpy().tobytes())

    def _note(self, question: str, text: str) -> None:
        self.problems[question][text] += 1

    def _weight_version(self) -> tuple[int, ...]:
        return tuple(parameter._version for parameter in self.parameters())


def _row(state: Any, row: int) -> Tensor:
    return torch.stack([part.detach()[0, row] for part in state])


def _close(one: Tensor, other: Tensor) -> bool:
    return bool(torch.allclose(one, other, atol=CLOSE))


def _misplaced_starts(flags: list[bool], starts: list[bool]) -> str:
    """The fault of a sequence in which all flags are shifted by one step, or inverted; otherwise empty."""
    if flags == starts or len(flags) < 3:
        return ""
    if flags[1:] == [not start for start in starts[1:]]:
        return "masks are given in place of episode starts: they are inverted, 1 - starts"
    if flags[:-1] == starts[1:] and any(starts[1:]):
        return "each episode start is given one step too early"
    if flags[1:] == starts[:-1] and any(starts[:-1]):
        return "each episode start is given one step too late"
    return ""
