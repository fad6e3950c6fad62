"""Other people's policies, unchanged: no alarm for what is exact, and the faults that are really there."""

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from audit.broken.case import TINY
from gymnasium import spaces
from support.playing import vector_env
from torch import nn
from torch.distributions import Categorical, Normal

from engram.audit import run_audit
from engram.audit.adapters.external_state import RowStates
from engram.audit.adapters.registry import recognise
from engram.audit.context import AuditContext
from engram.env.spec import EnvSpec
from engram.settings import UserError

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples" / "audit"
ENV = EnvSpec.of(vector_env())


def example(name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


Plain, Agent = example("plain_module").Plain, example("cleanrl_agent").Agent
puffer, sb3 = example("pufferlib_policy"), example("sb3_policy")


def failures(make, env=ENV, **options) -> set[str]:
    return {result.name for result in run_audit(make, env, sizes=TINY, **options).failures}


@pytest.mark.parametrize(("policy", "kind"), [(Plain, "module"), (Agent, "cleanrl"), (puffer.make, "pufferlib")])
def test_policies_are_known_by_their_methods(policy, kind: str) -> None:
    assert recognise(policy(ENV)) == kind


@pytest.mark.parametrize("policy", [Plain, Agent])
def test_no_alarm_for_what_is_exact(policy) -> None:
    assert failures(lambda: policy(ENV)) == set()


def test_the_loop_of_pufferlib_never_clears_and_learns_every_segment_from_nothing() -> None:
    report = run_audit(lambda: puffer.make(ENV), ENV, sizes=TINY)
    said = {result.name: result.finding for result in report.failures}
    assert said.keys() == {"boundary_acting", "boundary_learning", "gradient_boundary", "replay"}
    assert said["boundary_acting"].startswith("memory is not cleared at all")
    assert "learning differs from acting: where a segment begins with memory from before it" in said["replay"]


class KeepsItsOwnState(Plain):
    def forward(self, obs, state):
        state = self.__dict__.get("state") if self.__dict__.get("rows") == len(obs) else state
        h, c = self.cell(self.encoder(obs), state)
        self.__dict__["state"], self.__dict__["rows"] = (h.detach(), c.detach()), len(obs)
        return self.actor(h), self.critic(h), (h, c)


class IgnoresTheState(Plain):
    def forward(self, obs, state):
        return super().forward(obs, tuple(torch.zeros_like(part) for part in state))


class ReturnsADetachedState(Plain):
    def forward(self, obs, state):
        logits, value, state = super().forward(obs, state)
        return logits, value, tuple(part.detach() for part in state)


class MixesRows(Plain):
    def forward(self, obs, state):
        return super().forward(obs - obs.mean(0), state)


class ToldOfStarts(Plain):
    def forward(self, obs, state, starts):
        return super().forward(obs, tuple(part.masked_fill(starts.unsqueeze(-1), 0) for part in state))


class ToldOfStartsForNothing(Plain):
    def forward(self, obs, state, starts):
        return super().forward(obs, state)


class WithAGRU(Plain):
    def __init__(self, env):
        super().__init__(env)
        self.cell = nn.GRUCell(32, 32)

    def forward(self, obs, state):
        h = self.cell(self.encoder(obs), state)
        return self.actor(h), self.critic(h), h


class BeginsAsItSays(Plain):
    """With a layer that is not torch's, and a first state that is not zero."""

    def __init__(self, env):
        super().__init__(env)
        self.cell, self.mix = None, nn.Linear(64, 32)

    def initial_state(self, rows):
        return {"h": torch.full((rows, 32), 0.5, dtype=self.mix.weight.dtype)}

    def forward(self, obs, state):
        h = self.mix(torch.cat([self.encoder(obs), state["h"]], -1)).tanh()
        return self.actor(h), self.critic(h), {"h": h}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (ToldOfStarts, set()),
        (WithAGRU, set()),
        (BeginsAsItSays, set()),
        (IgnoresTheState, {"memory_used"}),
        (ReturnsADetachedState, {"horizon", "gradient_exact"}),
        (
            ToldOfStartsForNothing,
            {"boundary_acting", "boundary_learning", "gradient_boundary", "nan_at_start", "replay"},
        ),
    ],
)
def test_plain_modules(policy, expected: set[str]) -> None:
    assert failures(lambda: policy(ENV)) == expected


@pytest.mark.parametrize("policy", [KeepsItsOwnState, MixesRows])
def test_rows_of_a_plain_module_that_are_mixed_up_are_found(policy) -> None:
    assert "row_isolation" in failures(lambda: policy(ENV))


class NeverClears(Agent):
    def get_states(self, x, lstm_state, done):
        return super().get_states(x, lstm_state, torch.zeros_like(done))


class BatchFirst(Agent):
    """Takes a sequence that comes time first for one that comes batch first."""

    def get_states(self, x, lstm_state, done):
        rows = lstm_state[0].shape[1]

        def turned(field):
            return field.view(rows, -1, *field.shape[1:]).transpose(0, 1).flatten(0, 1)

        return super().get_states(turned(x), lstm_state, turned(done))


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (NeverClears, {"boundary_acting", "boundary_learning", "gradient_boundary", "nan_at_start", "replay"}),
        (
            BatchFirst,
            {
                "row_isolation",
                "causality",
                "boundary_learning",
                "gradient_boundary",
                "gradient_exact",  # rows that are mixed change each other's gradient
                "replay",
                "nan_at_start",
            },
        ),
    ],
)
def test_agents_in_the_style_of_cleanrl(policy, expected: set[str]) -> None:
    assert failures(lambda: policy(ENV)) == expected


def test_continuous_actions_of_a_pufferlib_policy_are_understood() -> None:
    env = vector_env(actions=spaces.Box(-1, 1, (2,)))

    class Continuous(puffer.Encoder):
        is_continuous = True

        def __init__(self):
            super().__init__(vector_env())
            self.mean, self.log_std = nn.Linear(32, 2), nn.Parameter(torch.zeros(1, 2))

        def decode_actions(self, hidden):
            mean = self.mean(hidden)
            return Normal(mean, self.log_std.exp().expand_as(mean)), self.value(hidden)

    make = lambda: puffer.Wrapper(env, Continuous(), 32, 32)  # noqa: E731
    assert failures(make, env) == {"boundary_acting", "boundary_learning", "gradient_boundary", "replay"}


def test_sb3_contrib_is_exact_but_keeps_a_nan() -> None:
    assert failures(lambda: sb3.make(ENV)) == {"nan_at_start"}


@pytest.mark.parametrize("actions", [spaces.MultiDiscrete([3, 2]), spaces.Box(-1, 1, (2,))])
def test_actions_of_sb3_contrib_are_understood(actions) -> None:
    env = vector_env(actions=actions)
    assert failures(lambda: sb3.make(env), env, only=["modes", "replay", "action_log_prob"]) == set()


def test_dropout_in_the_lstm_of_sb3_contrib_is_found() -> None:
    assert failures(lambda: sb3.make_with_dropout(ENV)) >= {"determinism", "replay", "modes"}


@pytest.mark.skipif(importlib.util.find_spec("pufferlib") is None, reason="needs PufferLib")
def test_policies_of_pufferlib_itself_are_understood(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)  # PufferLib leaves a link where it is imported
    models = pytest.importorskip("pufferlib.models")
    env = vector_env()
    env.observation_space, env.action_space = env.single_observation_space, env.single_action_space
    made = lambda: models.LSTMWrapper(env, models.Default(env, hidden_size=32), 32, 32)  # noqa: E731
    assert failures(made, env) == {"boundary_acting", "boundary_learning", "gradient_boundary", "replay"}


class OwnCore(Plain):
    """With a recurrent layer of its own, which begins by itself if it is given no state."""

    def __init__(self, env):
        super().__init__(env)
        self.cell, self.mix = None, nn.Linear(64, 32)

    def forward(self, obs, state=None):
        features = self.encoder(obs)
        h = self.mix(torch.cat([features, self.begin(features) if state is None else state], -1)).tanh()
        return self.actor(h), self.critic(h), h

    def begin(self, features):
        return torch.zeros_like(features)


class OwnBeginning(OwnCore):
    def begin(self, features):
        return torch.ones_like(features)


class NoBeginning(OwnCore):
    def begin(self, features):
        raise ValueError("a state, please")


def test_a_state_that_is_not_known_is_found_by_calling_without_one() -> None:
    assert failures(lambda: OwnCore(ENV)) == set()


@pytest.mark.parametrize(("policy", "said"), [(OwnBeginning, "is not zero"), (NoBeginning, "state is not known.*def")])
def test_a_module_whose_state_is_unknown_says_how_to_tell(policy, said: str) -> None:
    with pytest.raises(UserError, match=rf"(?s){said}.* initial_state\(.*rows\)"):
        AuditContext(lambda: policy(ENV), ENV)


class Unheard(nn.Module):
    """Its call is none that an adapter knows."""

    def __init__(self, width, depth=1):
        super().__init__()
        self.cell = nn.GRUCell(5, width)

    def forward(self, batch, carry, *, mask):
        return {"carry": self.cell(batch["x"], carry * mask)}


def test_the_lines_to_write_are_filled_in_for_the_class() -> None:
    with pytest.raises(UserError) as error:
        AuditContext(lambda: Unheard(width=24), ENV)
    lines = str(error.value)
    assert "self.policy = Unheard(width=...)" in lines
    assert "torch.zeros(rows, 24)" in lines
    assert "self.policy(obs, state, mask=...)" in lines


class Sequences(nn.Module):
    """Takes [B, T, …]."""

    def __init__(self, env, batch_first=True):
        super().__init__()
        self.lstm = nn.LSTM(5, 16, batch_first=batch_first)
        self.actor, self.critic = nn.Linear(16, 4), nn.Linear(16, 1)

    def forward(self, obs, state):
        hidden, state = self.lstm(obs, state)
        return Categorical(logits=self.actor(hidden)), self.critic(hidden), state


class TimeFirst(Sequences):
    def __init__(self, env):
        super().__init__(env, batch_first=False)


class Backwards(Sequences):
    def forward(self, obs, state):
        return super().forward(obs.flip(1), state)


def test_modules_that_take_sequences_are_given_them() -> None:
    assert failures(lambda: Sequences(ENV)) == set()
    assert failures(lambda: TimeFirst(ENV)) == set()
    assert {"causality", "replay"} <= failures(lambda: Backwards(ENV))


class StepsAndSequences(Plain):
    """Acts on [B, …] and learns from [B, T, …]."""

    def forward(self, obs, state, starts):
        if obs.dim() == 2:
            return self.one_step(obs, state, starts)
        return self.sequence(obs, state, starts)

    def one_step(self, obs, state, starts):
        return super().forward(obs, tuple(part.masked_fill(starts.view(-1, 1), 0) for part in state))

    def sequence(self, obs, state, starts):
        outputs = []
        for step in range(obs.shape[1]):
            *output, state = self.one_step(obs[:, step], state, starts[:, step])
            outputs.append(output)
        logits, values = (torch.stack(parts, 1) for parts in zip(*outputs, strict=True))
        return logits, values, state


class LearnsBackwards(StepsAndSequences):
    def sequence(self, obs, state, starts):
        logits, values, state = super().sequence(obs.flip(1), state, starts.flip(1))
        return logits.flip(1), values.flip(1), state


class LearningOverflows(StepsAndSequences):
    def sequence(self, obs, state, starts):
        logits, values, state = super().sequence(obs, state, starts)
        return logits, values + (values - 200).exp().log() * 0, state


def test_modules_that_take_steps_and_sequences_learn_from_sequences() -> None:
    report = run_audit(lambda: StepsAndSequences(ENV), ENV, sizes=TINY)
    assert report.failures == ()
    assert "acts on one step [B, …] and learns from sequences [B, T, …]" in report.assumed_loop


@pytest.mark.parametrize(("policy", "root"), [(LearnsBackwards, "causality"), (LearningOverflows, "gradient_health")])
def test_the_root_cause_of_a_fault_in_sequences_is_named(policy, root: str) -> None:
    causes = run_audit(lambda: policy(ENV), ENV, sizes=TINY).causes
    assert causes[0].root.name == root


class OfParts(Plain):
    """Reads the parts of a Dict observation by name."""

    def __init__(self, env):
        super().__init__(ENV)
        self.encoder = nn.Linear(8 + 3, 32)

    def forward(self, obs, state):
        bytes_ = obs["bytes"].to(obs["pose"].dtype) / 255
        h, c = self.cell(self.encoder(torch.cat([bytes_, obs["pose"]], -1)).tanh(), state)
        return self.actor(h), self.critic(h), (h, c)


PARTS = SimpleNamespace(
    observation_space=spaces.Dict(bytes=spaces.Box(0, 255, (8,), np.uint8), pose=spaces.Box(-1, 1, (3,), np.float32)),
    action_space=spaces.Discrete(4),
)


def test_parts_of_an_observation_reach_a_plain_module_by_name() -> None:
    only = ["determinism", "row_isolation", "boundary_acting", "gradient_exact", "replay"]
    report = run_audit(lambda: OfParts(PARTS), PARTS, sizes=TINY, only=only)
    assert report.failures == ()
    assert "in float64" in report.results[3].finding


def test_states_are_kept_by_row_whatever_their_shape() -> None:
    def begin(rows: int):
        return (torch.zeros(2, rows, 3), {"c": torch.zeros(rows, 4)})

    states = RowStates(begin)
    states.put([4, 5], (torch.arange(12.0).view(2, 2, 3), {"c": torch.ones(2, 4)}))
    h, rest = states.take([5, 9])
    assert torch.equal(h[:, 0], torch.tensor([[3.0, 4, 5], [9, 10, 11]]))
    assert torch.equal(h[:, 1], torch.zeros(2, 3))
    assert rest["c"].tolist() == [[1.0] * 4, [0.0] * 4]
