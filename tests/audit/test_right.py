"""Policies that are right, in all the ways there are to be: no alarm."""

from functools import partial

import pytest
import torch
from audit.broken.alone import Alone
from audit.broken.calls import AveragedOverChoices
from audit.broken.case import SEVERAL, TINY, TOKENS
from audit.broken.wrapper import OwnForward, Small, Tokens
from audit.designs.right_unusual import DeepTransition
from gymnasium import spaces
from support.designs import DESIGNS, design
from support.playing import image_env, token_spec, vector_env
from torch import nn

from engram import ComponentPolicy, Fast, LSTMWrapper
from engram.agent.policy_factory import find_class
from engram.agent.recurrent import CORES
from engram.agent.settings import POLICIES, YamlAgent
from engram.audit import run_audit
from engram.audit.checks import CHECKS
from engram.audit.context import QUICK, AuditSizes


class OwnLSTM(OwnForward):
    """Brings an nn.LSTM."""

    def __init__(self, env, **kwargs):
        super().__init__(env, **kwargs)
        self.lstm = nn.LSTM(12, 16, 3)


class Normalised(Small):
    def __init__(self, env, **kwargs):
        super().__init__(env, **kwargs)
        self.norm = nn.LayerNorm(12)

    def encode_observations(self, observations):
        return self.norm(super().encode_observations(observations))


class HeadsFromZero(Small):
    def __init__(self, env, **kwargs):
        super().__init__(env, **kwargs)
        for head in (self.actor, self.critic):
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)


class KeepsItsFeaturesToLookAt(Small):
    """With their graph, which nothing uses again."""

    def encode_observations(self, observations):
        self.last_features = super().encode_observations(observations)
        return self.last_features


class ByRowInADict(Alone):
    """The seeds' dicts, but by row."""

    def __init__(self, env, **options):
        super().__init__(env, **options)
        self.lstm_h, self.lstm_c = {}, {}

    def recall(self, ids):
        zeros = torch.zeros(2, 16)
        return tuple(torch.stack([part.get(int(i), zeros) for i in ids], 1) for part in (self.lstm_h, self.lstm_c))

    def store(self, ids, h, c):
        for number, row in enumerate(ids.tolist()):
            self.lstm_h[row], self.lstm_c[row] = h[:, number].detach(), c[:, number].detach()

    def get_memory(self):
        return dict(self.lstm_h), dict(self.lstm_c)

    def set_memory(self, memory):
        self.lstm_h, self.lstm_c = ({row: m.clone() for row, m in part.items()} for part in memory)

    def reset_memory(self):
        self.lstm_h, self.lstm_c = {}, {}

    def reset_env_memory(self, env_id):
        self.lstm_h.pop(env_id, None)
        self.lstm_c.pop(env_id, None)


class OwnTable(OwnForward):
    """A table of its own in place of LSTMWrapper's store, which is never read without rows."""

    def __init__(self, env, **kwargs):
        super().__init__(env, **kwargs)
        self.table = torch.zeros(4, 2, 32)

    def rows(self, ids):
        missing = int(ids.max()) + 1 - len(self.table)
        if missing > 0:
            self.table = torch.cat([self.table, self.table.new_zeros(missing, 2, 32)])
        self.table = self.table.to(self.actor.weight.dtype)
        return self.table

    def memory_of(self, ids_B):
        return {"lstm": self.rows(ids_B)[ids_B]}

    def _manage_lstm_state(self, td, B, TT, device):
        h, c, ids = super()._manage_lstm_state(td, B, TT, device)
        if ids is not None:
            memory = self.rows(ids)[ids].masked_fill((td["dones"] | td["truncateds"]).view(-1, 1, 1), 0)
            h, c = self.lstm.unpack(memory)
        return h, c, ids

    def _store_lstm_state(self, lstm_h, lstm_c, env_id):
        if env_id is not None:
            self.rows(env_id)[env_id] = self.lstm.pack(lstm_h, lstm_c).detach()

    def get_memory(self):
        rows = dict(enumerate(self.table.clone()))
        return {i: row[:, :16] for i, row in rows.items()}, {i: row[:, 16:] for i, row in rows.items()}

    def set_memory(self, memory):
        self.reset_memory()
        for row, h in memory[0].items():
            self.rows(torch.tensor(row))[row] = torch.cat([h, memory[1][row]], -1)

    def reset_memory(self):
        self.table = torch.zeros(4, 2, 32)

    def reset_env_memory(self, env_id):
        self.table[env_id : env_id + 1] = 0


class OwnTableTimesZero(OwnTable):
    """Clears by multiplying, so that a NaN stays."""

    def _manage_lstm_state(self, td, B, TT, device):
        h, c, ids = OwnForward._manage_lstm_state(self, td, B, TT, device)
        if ids is not None:
            self.lstm.pending_starts = None  # which would replace it after all
            h, c = self.lstm.unpack(self.rows(ids)[ids] * ~(td["dones"] | td["truncateds"]).view(-1, 1, 1))
        return h, c, ids


class ClearedToOnes(Alone):
    """The same at every start, so nothing of the past passes."""

    def clear(self, h, c, start):
        return h.masked_fill(start, 1), c.masked_fill(start, 1)


class AddedOverChoices(AveragedOverChoices):
    def whole_batches(self, parts, actions):
        return 2 * super().whole_batches(parts, actions)


def vector(policy, **options):
    return lambda **more: policy(vector_env(), **options, **more), vector_env()


RIGHT = {
    **{kind.__name__: (partial(kind, vector_env()), vector_env()) for kind in (Alone, Small, OwnForward, OwnLSTM)},
    **{kind.__name__: (partial(kind, vector_env()), vector_env()) for kind in (Normalised, HeadsFromZero)},
    **{core: vector(Small, core=core) for core in CORES},
    "ByRowInADict": vector(ByRowInADict),
    "OwnTable": vector(OwnTable),
    "AddedOverChoices": (partial(AddedOverChoices, SEVERAL), SEVERAL),
    "several choices": (partial(Small, SEVERAL), SEVERAL),
    "tokens": (partial(Tokens, TOKENS), TOKENS),
    "images": (partial(Fast, image_env(), hidden_size=16), image_env()),
}
for actions in (spaces.Box(-1, 1, (2,)), spaces.Discrete(90)):
    RIGHT[str(actions)] = (partial(Small, vector_env(actions=actions)), vector_env(actions=actions))


@pytest.mark.parametrize("name", RIGHT)
def test_no_alarm_for_what_is_right(name: str) -> None:
    make, env = RIGHT[name]
    only = [check for check in CHECKS if check != "compile"]
    report = run_audit(make, env, takes_options=True, only=only, sizes=TINY)
    assert {result.name: result.finding for result in report.failures} == {}


def test_what_is_kept_with_a_graph_fails_though_nothing_uses_it_again() -> None:
    (result,) = run_audit(*vector(KeepsItsFeaturesToLookAt), only=["detachment"]).failures
    assert "kept with a graph: last_features" in result.finding


def test_a_nan_is_put_into_the_memory_that_a_policy_keeps_itself() -> None:
    (result,) = run_audit(*vector(OwnTableTimesZero), only=["nan_at_start"]).failures
    assert "survives an episode start in acting" in result.finding


def test_an_error_under_autocast_is_noted_and_no_fault() -> None:
    (result,) = run_audit(*vector(DeepTransition), only=["precision"]).results
    assert result.passed
    assert "bfloat16 autocast raises" in result.notes[0]


def test_a_constant_initial_state_is_noted_and_no_fault() -> None:
    report = run_audit(*vector(ClearedToOnes), only=["boundary_acting", "boundary_learning", "nan_at_start"])
    assert report.passed
    assert "from a constant state" in report.results[0].notes[0]


class IgnoresStarts(OwnForward):
    """Clears where dones or truncateds say so, and does not look at `starts`."""

    def forward(self, td, state=None, action=None):
        return super().forward(td.exclude("starts"), state, action)


@pytest.mark.parametrize(("policy", "noted"), [(IgnoresStarts, True), (OwnForward, False)])
def test_starts_that_are_ignored_are_noted(policy: type, noted: bool) -> None:
    (result,) = run_audit(*vector(policy), only=["boundary_acting"]).results
    assert result.passed
    assert any("td['starts'] is ignored" in note for note in result.notes) == noted


def test_rounding_that_large_weights_amplify_is_no_fault() -> None:
    env = image_env(24, 24)
    make = partial(Fast, env, core="gru", hidden_size=32)
    assert run_audit(make, env, only=["replay"], sizes=AuditSizes(8, 8, 24)).failures == ()


@pytest.mark.parametrize("seed", [1, 2])
def test_no_alarm_whatever_the_seed(seed: int) -> None:
    only = [check for check in CHECKS if check != "compile"]
    assert (
        run_audit(
            partial(Small, vector_env()), vector_env(), takes_options=True, only=only, seed=seed, sizes=TINY
        ).failures
        == ()
    )


def checks_of(name: str) -> list[str]:
    """All, but compiling takes long: the larger ones are made of the same parts as the smaller ones."""
    return [check for check in CHECKS if check != "compile" or name in ("fast", "latent_attn_tiny")]


SIZES = {"fast": QUICK}  # once: all have the same core, store and heads
# `agent=NAME` is the network of `py_agent=NAME`, with its gradients (tests of parity): only its assembly is new.
ASSEMBLED = ["td_fields", "memory_interface", "replay", "configuration", "weight_clipping"]
LARGE = ("latent_attn_small", "latent_attn_med")


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_all_our_policies_hold(name: str) -> None:
    make = partial(find_class(name), token_spec(), hidden_size=32)
    report = run_audit(make, token_spec(), takes_options=True, only=checks_of(name), sizes=SIZES.get(name, TINY))
    assert report.failures == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", DESIGNS)
def test_all_our_yaml_policies_hold(name: str) -> None:
    settings = design(name).model_dump()
    make = lambda **options: ComponentPolicy(token_spec(), YamlAgent(**(settings | options)))  # noqa: E731
    only = ASSEMBLED if name in LARGE else checks_of(name)
    assert run_audit(make, token_spec(), takes_options=True, only=only, sizes=TINY).failures == ()


def test_a_policy_that_is_a_module_inside_the_wrapper_holds() -> None:
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = nn.Linear(5, 128), nn.Linear(128, 5)

        def encode_observations(self, observations):
            return self.encoder(observations.to(self.encoder.weight.dtype))

        def decode_actions(self, hidden):
            return self.head(hidden)[:, :4], self.head(hidden)[:, 4]

    only = [check for check in CHECKS if check != "compile"]
    assert (
        run_audit(lambda: LSTMWrapper(vector_env(), policy=Inner()), vector_env(), only=only, sizes=TINY).failures == ()
    )
