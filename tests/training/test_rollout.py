"""Rollouts: the noise with which actions are sampled in training."""

import pytest
import torch
from support.running import run

from engram.training import loop
from engram.training.exploration import HOLDING_CORRELATION, SWINGING_CORRELATION, correlate, correlations, rotate


def test_correlated_noise_is_uniform_at_every_step_and_keeps_its_side_for_a_while() -> None:
    noise, last = correlate(torch.rand(64, 2000, 1, generator=torch.Generator().manual_seed(0)), None, 0.7)
    assert noise.mean(1).sub(0.5).abs().max() < 0.05
    assert noise.std(1).sub(12**-0.5).abs().max() < 0.02
    normal = torch.special.ndtri(noise)
    assert (normal[1:] * normal[:-1]).mean() == pytest.approx(0.7, abs=0.02)
    assert torch.allclose(normal[-1], last, atol=1e-4)


def test_correlated_noise_continues_from_one_rollout_to_the_next() -> None:
    uniform = torch.rand(8, 5, 1)
    whole, _ = correlate(uniform, None, 0.7)
    first, last = correlate(uniform[:3], None, 0.7)
    second, _ = correlate(uniform[3:], last, 0.7)
    assert torch.equal(whole, torch.cat([first, second]))


def test_every_fourth_row_of_discrete_actions_is_more_persistent() -> None:
    eight = [0.7, 0.7, 0.7, SWINGING_CORRELATION, 0.7, 0.7, 0.7, HOLDING_CORRELATION]
    assert correlations(0.7, 16, continuous=False).flatten().tolist() == pytest.approx(eight * 2)
    assert correlations(0.99, 4, continuous=False).flatten().tolist() == pytest.approx([0.99] * 4)
    assert correlations(0.7, 4, continuous=True).flatten().tolist() == pytest.approx([0.7] * 4)


def test_every_eighth_row_holds_any_action_and_its_noise_is_still_uniform() -> None:
    generator, rows = torch.Generator().manual_seed(0), 8 * 2000
    uniform = torch.rand(64, rows, 1, generator=generator)
    noise, _ = correlate(uniform, None, correlations(0.7, rows, continuous=False))
    rotated = rotate(noise, generator)
    others = torch.arange(rows) % 8 != 7
    assert torch.equal(rotated[:, others], noise[:, others])
    assert ((rotated >= 0) & (rotated < 1)).all()
    stubborn = rotated[:, ~others, 0]
    assert stubborn.mean(1).sub(0.5).abs().max() < 0.03
    assert stubborn.std(1).sub(12**-0.5).abs().max() < 0.02

    actions = (stubborn * 5).long()  # of five equally likely ones
    held = actions.mode(0)[0][(actions == actions.mode(0)[0]).float().mean(0) > 0.9]  # for most of a rollout
    assert (held.bincount(minlength=5) > 0.15 * len(held)).all()


def test_each_row_has_noise_of_its_own_correlation() -> None:
    rows = torch.zeros(1000, 1)
    rows[500:] = 0.9
    noise, _ = correlate(torch.rand(64, 1000, 1, generator=torch.Generator().manual_seed(0)), None, rows)
    normal = torch.special.ndtri(noise)
    assert (normal[1:] * normal[:-1]).mean(0)[:500].mean() == pytest.approx(0, abs=0.03)
    assert (normal[1:] * normal[:-1]).mean(0)[500:].mean() == pytest.approx(0.9, abs=0.03)


@pytest.mark.parametrize(("correlation", "least", "most"), [(0.0, 0.15, 0.35), (0.7, 0.4, 0.6)])
def test_a_new_policy_repeats_discrete_actions_as_its_noise_does(
    tmp_path, monkeypatch, correlation: float, least: float, most: float
) -> None:
    actions = torch.cat(played_actions(tmp_path, monkeypatch, f"trainer.noise_correlation={correlation}"))
    assert least < (actions[:, 1:] == actions[:, :-1]).float().mean() < most  # one action in four, by chance


@pytest.mark.parametrize(("correlation", "rotated"), [(0.0, False), (0.7, True)])
def test_a_rollout_acts_with_rotated_noise_if_it_is_correlated(
    tmp_path, monkeypatch, correlation: float, rotated: bool
) -> None:
    monkeypatch.setattr("engram.training.exploration.rotate", lambda noise, generator: torch.full_like(noise, 0.999))
    (actions,) = played_actions(tmp_path, monkeypatch, f"trainer.noise_correlation={correlation}", epochs=1)
    assert (actions == actions.max()).all().item() == rotated  # the last action, always


def played_actions(tmp_path, monkeypatch, *words: str, epochs: int = 3) -> list[torch.Tensor]:
    """The actions [R, T] of each epoch of a run."""
    played: list[torch.Tensor] = []
    update = loop.learn

    def recording(training, experience, settings, averages):
        played.append(experience.by_row("actions").clone())
        return update(training, experience, settings, averages)

    monkeypatch.setattr(loop, "learn", recording)
    run(tmp_path, *words, epochs=epochs)
    return played
