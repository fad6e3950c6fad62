"""Event counts: an exact memory of how often each symbol was seen, and each action was taken, in the episode."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict

from engram.agent.event_counts import EventCounts, count_core, counted_parts
from engram.agent.metta_agent import MettaAgent
from engram.agent.policies.fast import Fast
from engram.agent.recurrent import CORES
from engram.agent.settings import PyAgent
from engram.env.parts import OBSERVED, PREVIOUS_ACTION, Part, box
from engram.env.spec import EnvSpec
from engram.settings import UserError


def board(cells: int = 6, values: tuple[int, ...] = (2,)) -> EnvSpec:
    """A game whose observation tells what the last action found: a hit or a miss."""
    symbols = Part(OBSERVED, "symbols", spaces.Box(0, 1, (len(values),), np.int32), values)
    action = Part(PREVIOUS_ACTION, "vector", box((cells,), np.dtype(np.float32)))
    return EnvSpec.of_parts("board", [symbols, action], spaces.Discrete(cells))


def step(found: list[int], cells: list[int | None], size: int = 6) -> TensorDict:
    """Observations of several rows: what was found in which cell, None at an episode's start."""
    action = torch.zeros(len(cells), size)
    for row, cell in enumerate(cells):
        if cell is not None:
            action[row, cell] = 1
    return TensorDict(
        {OBSERVED: torch.tensor(found, dtype=torch.int32).unsqueeze(1), PREVIOUS_ACTION: action}, len(found)
    )


def plain_count(events, before, starts):
    """The definition: add up, from 0 where an episode starts."""
    counts, state = [], before.squeeze(1)
    for event, start in zip(events, starts, strict=True):
        state = state.masked_fill(start.unsqueeze(-1), 0) + event
        counts.append(state)
    return torch.stack(counts)


@pytest.mark.parametrize("steps", [1, 2, 50])
def test_counts_are_sums_over_the_episode(steps):
    torch.manual_seed(0)
    events = torch.randint(-2, 3, (steps, 8, 5)).float()
    before, starts = torch.randint(9, (8, 1, 5)).float(), torch.rand(steps, 8) < 0.2
    counts, memory = count_core(events, before, starts)
    expected = plain_count(events, before, starts)
    assert torch.equal(counts, expected)
    assert torch.equal(memory, expected[-1].unsqueeze(1))


def test_nothing_before_an_episode_start_reaches_counts_or_gradients():
    events = torch.ones(4, 1, 2)
    before = torch.full((1, 1, 2), float("nan"))
    starts = torch.tensor([[False], [False], [True], [False]])
    counts, memory = count_core(events, before, starts)
    assert counts[2:].flatten().tolist() == [1, 1, 2, 2]
    assert memory.flatten().tolist() == [2, 2]
    before = torch.ones(1, 1, 2, requires_grad=True)
    counts, _ = count_core(events, before, starts)
    (gradient,) = torch.autograd.grad(counts[2:].sum(), before, retain_graph=True)
    assert gradient.eq(0).all()
    (gradient,) = torch.autograd.grad(counts[:2].sum(), before)
    assert gradient.eq(2).all()


def test_a_combination_of_what_was_found_and_done_is_an_event():
    counts = EventCounts(board())
    events = counts.combine(counts.one_hots(step([1, 0, 1], [4, 4, None])))
    assert events.shape == (3, 2 * 6)
    assert events.nonzero().tolist() == [[0, 6 + 4], [1, 4]]  # at an episode's start there is none


@torch.no_grad()
@pytest.mark.parametrize("values", [(3, 3), (3, 2, 3), (40,)])
def test_the_value_of_a_symbol_is_looked_up_in_the_counts_of_symbols_with_as_many_values(values):
    torch.manual_seed(0)
    rows, steps, spec = 2, 50, board(cells=500, values=values)  # too many combinations
    counts = EventCounts(spec)
    assert counts.combinations == 0
    pairs = [(i, j) for i, n in enumerate(values) for j, m in enumerate(values) if n == m]
    seen = [[[] for _ in values] for _ in range(rows)]
    for t in range(steps):
        starts = torch.rand(rows) < (1 if t == 0 else 0.03)
        symbols = torch.stack([torch.randint(n, (rows,), dtype=torch.int32) for n in values], -1)
        if len(values) == 1:
            symbols.fill_(5)  # until there are more than are told apart
        observations = TensorDict({OBSERVED: symbols, PREVIOUS_ACTION: torch.zeros(rows, 500)}, rows)
        td = TensorDict(
            {"env_obs": observations, "starts": starts, "training_env_id_start": torch.zeros(rows).long()}, rows
        )
        features = counts(observations, td, rows, 1).view(rows, len(pairs), 32)
        for row in range(rows):
            for history, value in zip(seen[row], symbols[row].tolist(), strict=True):
                if starts[row]:
                    history.clear()
                history.append(value)
            expected = [min(seen[row][j].count(symbols[row, i].item()), 31) for i, j in pairs]
            assert features[row].argmax(-1).tolist() == expected
            assert features[row].gt(0).sum(-1).tolist() == [1] * len(pairs)
    assert max(len(history) for history in seen[0]) > 2


def test_bundled_policies_count_where_observations_are_only_symbols():
    def policy(spec, **options):
        return MettaAgent(spec, PyAgent(hidden_size=16, **options)).policy

    numbers = EnvSpec.of_parts(
        "numbers", [Part("speed", "vector", box((3,), np.dtype(np.float32)))], spaces.Discrete(2)
    )
    assert policy(board()).event_counts.size == 12 + 32
    assert policy(board(), name="example").output_size == 16 + 12 + 32
    assert policy(board(), counts=False).event_counts is None
    assert policy(numbers).event_counts is None
    assert policy(board(cells=257)).event_counts.size == 32  # too many combinations, but two values
    too_many = board(cells=257, values=(2, 2, 2, 2, 2))
    assert counted_parts(too_many) == []
    assert policy(too_many).event_counts is None
    with pytest.raises(UserError, match=r"py_agent.counts: numbers has no symbols outside of grids, or they have too"):
        policy(numbers, counts=True)


@torch.no_grad()
def test_counts_do_not_change_an_untrained_policy_but_a_trained_one():
    policy = Fast(board(), input_size=8, hidden_size=16, num_layers=1, counts=True)
    hidden = torch.randn(3, policy.output_size)
    other = torch.cat([hidden[:, :16], torch.randn(3, 12 + 32)], 1)
    assert all(
        torch.equal(a, b) for a, b in zip(policy.decode_actions(hidden), policy.decode_actions(other), strict=True)
    )
    for parameter in policy.parameters():
        parameter.normal_()
    (logits, value), (other_logits, other_value) = policy.decode_actions(hidden), policy.decode_actions(other)
    assert (logits != other_logits).all()
    assert (value != other_value).all()


def test_a_policy_that_does_not_hand_counts_on_is_told_so(tmp_path):
    (tmp_path / "own.py").write_text(
        "import torch\nfrom engram import LSTMWrapper\n"
        "class Own(LSTMWrapper):\n"
        "    def __init__(self, env, counts=False, **kwargs):\n"
        "        super().__init__(env, **kwargs)\n"
    )
    with pytest.raises(UserError, match=r"py_agent.counts: Own does not pass it to LSTMWrapper"):
        MettaAgent(board(), PyAgent(name=f"{tmp_path / 'own.py'}:Own", counts=True))


@torch.no_grad()
@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("steps", [1, 9])
def test_replaying_a_rollout_with_counts_gives_the_probabilities_it_was_played_with(core, steps):
    torch.manual_seed(0)
    rows, policy = 5, Fast(board(), input_size=8, hidden_size=16, num_layers=1, core=core, counts=True)
    for parameter in policy.count_shortcut.parameters():
        parameter.normal_()
    for _ in range(3):
        memory, played = policy.memory_of(torch.arange(rows)), []
        ends = torch.rand(steps, rows) < 0.2
        for t in range(steps):
            cells = [int(torch.randint(6, ())) for _ in range(rows)]
            observations = step(torch.randint(2, (rows,)).tolist(), cells)
            td = TensorDict({"env_obs": observations, "dones": ends[t], "truncateds": ends[t]}, rows)
            td["training_env_id_start"] = torch.zeros(rows, dtype=torch.long)
            played.append(policy(td))
        segment = torch.stack(played, 1)
        learning = segment.select("env_obs", "dones", "truncateds")
        learning["memory"] = {
            name: value.unsqueeze(1).expand(rows, steps, *value.shape[1:]) for name, value in memory.items()
        }
        replayed = policy(learning, action=segment["actions"])
        torch.testing.assert_close(replayed["act_log_prob"], segment["act_log_prob"], rtol=0, atol=1e-5)
        torch.testing.assert_close(replayed["value"], segment["values"], rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize(("core", "layers"), [("lstm", 1), ("lru", 1), ("gru", 2), ("attention", 1)])
def test_memory_with_counts_is_saved_and_restored(core, layers):
    policy = Fast(board(), input_size=8, hidden_size=4, num_layers=layers, core=core, counts=True)
    td = TensorDict({"env_obs": step([1, 0], [2, 3]), "training_env_id_start": torch.full((2,), 3)}, 2)
    policy(td)
    before = policy.memory_of(torch.tensor([3, 4]))
    assert before["counts"].sum((1, 2)).tolist() == [2, 2]  # a combination and a value each
    saved = policy.get_memory()
    policy(td)
    policy.set_memory(saved)
    after = policy.memory_of(torch.tensor([3, 4]))
    assert all(torch.equal(before[name], after[name]) for name in before)
    policy.reset_env_memory(3)
    assert policy.memory_of(torch.tensor([3, 4]))["counts"].sum((1, 2)).tolist() == [0, 2]
