"""The categorical distribution: sampling follows the probabilities, and a row has the same bits in any batch."""

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical

from engram.agent.actions import evaluate_categorical, inverse_cdf, sample_categorical


def case(rows: int = 300, width: int = 5) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return 3 * torch.randn(rows, width), torch.randint(width, (rows, 1))


def test_log_probability_and_entropy_equal_those_of_torch() -> None:
    logits, index = case()
    log_prob, entropy, log_probs = evaluate_categorical(logits, index)
    expected = Categorical(logits=logits)
    torch.testing.assert_close(log_prob, expected.log_prob(index.squeeze(1)))
    torch.testing.assert_close(entropy, expected.entropy())
    torch.testing.assert_close(log_probs, expected.logits)


def test_samples_follow_the_probabilities_and_stay_in_range() -> None:
    probs = torch.tensor([0.5, 0.0, 0.2, 0.3])
    logits = probs.log().clamp(min=-50).expand(40_000, 4)
    index, log_prob, _ = sample_categorical(logits, torch.linspace(0, 1 - 1e-7, 40_000).unsqueeze(1))
    torch.testing.assert_close(torch.bincount(index, minlength=4) / 40_000, probs, atol=1e-3, rtol=0)
    torch.testing.assert_close(log_prob, logits.gather(1, index.unsqueeze(1)).squeeze(1))
    assert sample_categorical(logits[:1], torch.ones(1, 1))[0] == 3


def test_an_impossible_index_is_never_sampled() -> None:
    impossible_ends = torch.tensor([[0.0, 1.0, 0.0]]).log()
    for noise in (0.0, 0.5, 1 - 2**-24):
        assert inverse_cdf(impossible_ends, torch.tensor([[noise]])) == 1


@pytest.mark.parametrize("grad", [False, True])
def test_acting_and_learning_have_the_same_bits(grad: bool) -> None:
    logits, _ = case()
    logits.requires_grad_(grad)
    index, log_prob, log_probs = sample_categorical(logits, torch.rand(300, 1))
    evaluated = evaluate_categorical(logits, index.unsqueeze(1))
    assert torch.equal(log_prob, evaluated[0])
    assert torch.equal(log_probs, evaluated[2])
    assert log_prob.requires_grad == grad


@pytest.mark.parametrize("width", [1, 2, 5, 19, 64])
def test_a_row_has_the_same_bits_in_any_batch(width: int) -> None:
    logits, index = case(width=width)
    whole = evaluate_categorical(logits, index)
    for rows in (slice(0, 1), slice(3, 10), slice(64, 128), slice(5, 300)):
        for part, full in zip(evaluate_categorical(logits[rows], index[rows]), whole, strict=True):
            assert torch.equal(part, full[rows])


def test_nan_is_not_hidden() -> None:
    logits, index = case()
    logits[7, 2] = torch.nan
    log_prob, entropy, log_probs = evaluate_categorical(logits, index)
    for each in (log_prob, entropy, log_probs.sum(1)):
        assert each.isnan().nonzero().flatten().tolist() == [7]


@pytest.mark.parametrize("wrong", [-1, 5])
def test_an_action_out_of_range_is_an_error(wrong: int) -> None:
    logits, index = case()
    index[123] = wrong
    with pytest.raises((IndexError, RuntimeError)):
        evaluate_categorical(logits, index)
