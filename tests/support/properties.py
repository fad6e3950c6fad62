"""Properties of every policy, one check each: for tests that they hold, and for tests that break them on purpose."""

import torch
from support.playing import play, random_observations, replay, replay_difference
from tensordict import TensorDict
from torch import Tensor, nn

from engram.agent.encoders.tokens import TokenDecoder
from engram.agent.policies.base import Policy

BOUND = 1e-5  # of float32 numbers that should be equal
ROWS = 6


def check_replay(policy: Policy, steps: int = 8, end_chance: float = 0.2, rollouts: int = 3) -> None:
    """Replaying gives what acting gave, with batches uneven and out of order, and memory carried on."""
    difference = replay_difference(policy, play(policy, ROWS, steps, end_chance, rollouts))
    assert difference < BOUND, f"replay differs by {difference}"


def check_no_graph(policy: Policy) -> None:
    """Stored memory is detached, although acting had a graph."""
    for seed in range(3):
        act(policy, seed)
    assert act(policy)["values"].requires_grad
    for name, store in policy.stores().items():
        assert store.memory_NLS.grad_fn is None, name
        assert not store.memory_NLS.requires_grad, name


def check_boundaries(policy: Policy) -> None:
    """An episode start clears that row, no other one, and before the step; without one, memory is carried on."""
    starts = torch.zeros(ROWS, dtype=torch.bool)
    starts[2] = True
    with torch.no_grad():
        policy.reset_memory()
        fresh = answers(act(policy, 1))
        policy.reset_memory()
        act(policy, 0)
        kept = policy.get_memory()
        carried = answers(act(policy, 1))
        policy.set_memory(kept)
        started = answers(act(policy, 1, truncateds=starts))
        policy.set_memory(kept)
        ended = answers(act(policy, 1, dones=starts))
    assert (carried - fresh).abs().max() > BOUND, "memory makes no difference"
    for seen in (started, ended):
        torch.testing.assert_close(seen[starts], fresh[starts], rtol=0, atol=BOUND)
        torch.testing.assert_close(seen[~starts], carried[~starts], rtol=0, atol=BOUND)


def check_rows_are_apart(policy: Policy) -> None:
    """Each row sees its own past, in whatever order and slices it comes."""
    whole = [slice(0, 6)]
    in_parts = [whole, [slice(4, 6), slice(0, 1), slice(1, 4)], [slice(3, 6), slice(0, 3)], whole]

    @torch.no_grad()
    def lived(steps: list[list[slice]]) -> Tensor:
        policy.reset_memory()
        seen = []
        for seed, order in enumerate(steps):
            by_start = {part.start: answers(act(policy, seed, rows=part)) for part in order}
            seen.append(torch.cat([by_start[start] for start in sorted(by_start)]))
        return torch.stack(seen)

    torch.testing.assert_close(lived(in_parts), lived([whole] * 4), rtol=0, atol=BOUND)


def check_log_probs(policy: Policy) -> None:
    """The log-probability is that of the action itself, in acting and in learning."""
    (segment,) = play(policy, ROWS, 4, 0.2, rollouts=1)
    for td in (segment.fields, replay(policy, segment)):
        expected = td["full_log_probs"].gather(-1, segment.fields["actions"].unsqueeze(-1)).squeeze(-1)
        torch.testing.assert_close(td["act_log_prob"], expected, rtol=0, atol=0)


def check_values_are_fractions(policy: Policy) -> None:
    """A token's value is divided by its feature's normalisation as a number, not as a byte."""
    features = policy.env_spec.features
    tokens = torch.tensor([[0x11, f.id, value] for f in features for value in (1, 7, 13, 254)], dtype=torch.uint8)
    expected = torch.tensor([value / f.normalization for f in features for value in (1, 7, 13, 254)])
    decoders = [module for module in policy.modules() if isinstance(module, TokenDecoder)]
    for decoder in decoders:
        torch.testing.assert_close(decoder(tokens.unsqueeze(0)).values[0], expected)
    assert decoders


def check_clipping(policy: Policy) -> None:
    """After clipping, the weights of the layers, recurrent ones too, are within the range."""
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1.0)
    policy.clip_range = 0.25
    policy.clip_weights()
    layers = policy.weight_layers()
    assert any("_hh_l" in name or "_ih_l" in name for layer in layers for name in layer.parameters)
    for layer in layers:
        for name, parameter in layer.parameters.items():
            assert parameter.abs().max() <= 0.25 * layer.options.clip_scale, name


def act(
    policy: Policy, seed: int = 0, rows: slice = slice(0, ROWS), run: nn.Module | None = None, **flags: Tensor
) -> TensorDict:
    """One step of some of the rows, with the observations and the noise that belong to the seed.

    `run` is what is called where it is not the policy itself: the same compiled, or an agent around it.
    """
    generator = torch.Generator().manual_seed(seed)
    none = torch.zeros(ROWS, dtype=torch.bool)
    fields = {
        "env_obs": random_observations(policy.env_spec, (ROWS,), generator),
        "action_noise": torch.rand(ROWS, policy.action_space.noise, generator=generator),
        "dones": none,
        "truncateds": none,
    }
    td = TensorDict(fields | flags, [ROWS])[rows].clone()
    td["training_env_id_start"] = torch.full((rows.stop - rows.start,), rows.start)
    return (policy if run is None else run)(td)


def answers(td: TensorDict) -> Tensor:
    """All outputs of a policy, [rows, numbers]."""
    return torch.cat([td["full_log_probs"], td["values"].unsqueeze(1)], dim=1)
