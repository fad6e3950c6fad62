"""Choices: the kernels say what PyTorch says, and gradients are those of the formulas."""

import pytest
import torch
from torch import Tensor

from engram.agent.categorical import choose, evaluate_choice, sample_choice
from engram.native.library import kernels, without_kernels

needs_kernels = pytest.mark.skipif(kernels() is None, reason="there is no compiler, or the kernels are switched off")


def case(rows: int = 300, width: int = 5, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return 3 * torch.randn(rows, width, dtype=dtype), torch.randint(width, (rows, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_those_of_the_formulas(dtype: torch.dtype) -> None:
    logits, index = case(dtype=dtype)
    logits.requires_grad_()
    factors = torch.randn(7, 300, dtype=dtype).split([1, 1, 5])

    def gradient(log_prob: Tensor, entropy: Tensor, log_probs: Tensor, of: set[int]) -> Tensor:
        parts = [log_prob * factors[0][0], entropy * factors[1][0], log_probs * factors[2].T]
        return torch.autograd.grad(sum(parts[i].sum() for i in of), logits)[0]

    for of in ({0}, {1}, {2}, {0, 1}, {0, 1, 2}):
        log_probs = logits.log_softmax(-1)
        plain = log_probs.gather(-1, index).squeeze(-1), -(log_probs.exp() * log_probs).sum(-1), log_probs
        torch.testing.assert_close(gradient(*evaluate_choice(logits, index)[:3], of), gradient(*plain, of))


@needs_kernels
@pytest.mark.parametrize("rows", [1, 37, 5000])
@pytest.mark.parametrize("width", [1, 2, 19])
@pytest.mark.parametrize("threads", [1, 2])
def test_kernels_say_what_pytorch_says(rows: int, width: int, threads: int) -> None:
    logits, index = case(rows, width)
    noise = torch.rand(rows, 1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        ours = [*evaluate_choice(logits, index), *sample_choice(logits, noise)]
        with without_kernels():
            theirs = [*evaluate_choice(logits, index), *sample_choice(logits, noise)]
    finally:
        torch.set_num_threads(before)
    assert (ours[4] != theirs[4]).sum() <= rows // 1000  # where the noise is on an edge
    same = ours[4] == theirs[4]
    for mine, other in zip(ours[:4], theirs[:4], strict=True):
        torch.testing.assert_close(mine, other)
    for mine, other in zip(ours[4:], theirs[4:], strict=True):
        torch.testing.assert_close(mine[same], other[same])


def test_rows_may_lie_apart_and_noise_too() -> None:
    logits, index = case()
    wide = torch.cat([logits, logits], 1)[:, :5]
    noise = torch.rand(300, 3)
    for mine, other in zip(evaluate_choice(wide, index), evaluate_choice(logits, index), strict=True):
        assert torch.equal(mine, other)
    for mine, other in zip(
        sample_choice(wide, noise[:, 1:2]), sample_choice(logits, noise[:, 1:2].contiguous()), strict=True
    ):
        assert torch.equal(mine, other)


def test_choices_come_as_often_as_they_are_likely_and_never_beyond_the_last() -> None:
    probs = torch.tensor([0.5, 0.0, 0.2, 0.3])
    logits = probs.log().clamp(min=-50).expand(40_000, 4)
    index, log_prob, _ = sample_choice(logits, torch.linspace(0, 1 - 1e-7, 40_000).unsqueeze(1))
    found = torch.bincount(index, minlength=4) / 40_000
    torch.testing.assert_close(found, probs, atol=1e-3, rtol=0)
    torch.testing.assert_close(log_prob, logits.gather(1, index.unsqueeze(1)).squeeze(1))
    assert sample_choice(logits[:1], torch.ones(1, 1))[0] == 3
    assert choose(logits[:1], torch.ones(1, 1)) == 3


@pytest.mark.parametrize("grad", [False, True])
def test_acting_and_learning_have_the_same_bits(grad: bool) -> None:
    logits, _ = case()
    logits.requires_grad_(grad)
    index, log_prob, log_probs = sample_choice(logits, torch.rand(300, 1))
    told = evaluate_choice(logits, index.unsqueeze(1))
    assert torch.equal(log_prob, told[0])
    assert torch.equal(log_probs, told[2])
    assert log_prob.requires_grad == grad


def test_a_nan_is_not_hidden() -> None:
    logits, index = case()
    logits[7, 2] = torch.nan
    log_prob, entropy, log_probs, _ = evaluate_choice(logits, index)
    for each in (log_prob, entropy, log_probs.sum(1)):
        assert each.isnan().nonzero().flatten().tolist() == [7]


@pytest.mark.parametrize("wrong", [-1, 5])
def test_an_action_that_there_is_not_is_an_error(wrong: int) -> None:
    logits, index = case()
    index[123] = wrong
    with pytest.raises((IndexError, RuntimeError)):
        evaluate_choice(logits, index)
