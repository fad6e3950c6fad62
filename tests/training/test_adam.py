"""Adam by the kernel: PyTorch's numbers and state, with clipping, for any mixture of parameters."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from engram.native import library
from engram.training.adam import Adam, clip_gradient

SHAPES = [(), (1,), (3, 5), (7,), (130, 65), (513,), (300, 300)]
OPTIONS = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-5, "weight_decay": 0.1, "fused": True}


@pytest.fixture(params=[*library.instruction_sets(), "pure"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """The kernels for each kind of processor that this one can stand in for, and PyTorch without them."""
    kernels = library.kernels()
    if request.param == "pure":
        with library.without_kernels():
            yield request.param
        return
    assert kernels is not None
    library.select_instruction_set(kernels, request.param)
    yield request.param
    library.select_instruction_set(kernels)


def parameters() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape)) for shape in SHAPES]


def gradients(number: int, size: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(number)
    return [size * torch.randn(shape, generator=generator) for shape in SHAPES]


def give(to: list[nn.Parameter], number: int, size: float = 1.0) -> None:
    for parameter, gradient in zip(to, gradients(number, size), strict=True):
        parameter.grad = gradient


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("decoupled", [False, True])
def test_numbers_and_norms_are_those_of_clip_grad_norm_and_torch(way: str, decoupled: bool, threads: int) -> None:
    mine, theirs = parameters(), [nn.Parameter(p.detach().double()) for p in parameters()]
    adam = Adam(mine, decoupled_weight_decay=decoupled, **OPTIONS)
    torchs = (torch.optim.AdamW if decoupled else torch.optim.Adam)(theirs, **{**OPTIONS, "fused": False})
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for number in range(6):
            size = 1.0 if number % 2 else 1e-4  # clipped and not
            give(mine, number, size)
            for parameter, gradient in zip(theirs, gradients(number, size), strict=True):
                parameter.grad = gradient.double()
            expected = torch.stack([p.grad.norm() for p in theirs if p.grad is not None]).float()
            nn.utils.clip_grad_norm_(theirs, 0.5)
            torch.testing.assert_close(adam.clip_and_step(0.5), expected)
            torchs.step()
    finally:
        torch.set_num_threads(before)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-6)
        for name in ("exp_avg", "exp_avg_sq", "step"):
            kept, right = adam.state[one][name].double(), torchs.state[other][name].double()
            torch.testing.assert_close(kept, right, rtol=1e-4, atol=1e-9)


def test_the_kernel_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    if library.kernels() is None:
        pytest.skip("there is no compiler, or the kernels are switched off")
    adam = Adam(mine := parameters(), **OPTIONS)
    give(mine, 0)
    adam.clip_and_step(1.0)  # makes the state
    monkeypatch.setattr(torch.optim.Adam, "step", lambda *_: pytest.fail("PyTorch's step was called"))
    give(mine, 1)
    adam.clip_and_step(1.0)


def test_parameters_without_a_gradient_stay_where_they_are(way: str) -> None:
    adam = Adam(mine := parameters(), **OPTIONS)
    give(mine, 0)
    adam.clip_and_step(1.0)
    give(mine, 1)
    mine[3].grad = None
    before, steps = mine[3].detach().clone(), adam.state[mine[3]]["step"].clone()
    norms = adam.clip_and_step(1.0)
    assert norms[3] == 0
    assert all(norms[i] > 0 for i in (0, 1, 2, 4, 5, 6))
    assert torch.equal(mine[3], before)
    assert torch.equal(adam.state[mine[3]]["step"], steps)
    adam.zero_grad()
    assert torch.equal(adam.clip_and_step(1.0), torch.zeros(len(SHAPES)))


def test_gradients_may_lie_anywhere(way: str) -> None:
    if way == "pure":
        pytest.skip("PyTorch's fused kernel takes the numbers of such a gradient in their order in memory")
    ends = []
    for transposed in (False, True):
        adam = Adam(mine := parameters(), **OPTIONS)
        for number in range(3):
            give(mine, number)
            if transposed and number:  # the first step is PyTorch's
                assert mine[6].grad is not None
                mine[6].grad = mine[6].grad.t().contiguous().t()
            adam.clip_and_step(1.0)
        ends.append(mine[6].detach().clone())
    torch.testing.assert_close(*ends)


def test_a_loaded_state_is_gone_on_from(way: str) -> None:
    adam = Adam(mine := parameters(), **OPTIONS)
    for number in range(2):
        give(mine, number)
        adam.clip_and_step(1.0)
    states = {i: {k: v.clone() for k, v in s.items()} for i, s in adam.state_dict()["state"].items()}
    saved, weights = {**adam.state_dict(), "state": states}, [p.detach().clone() for p in mine]
    ends = []
    for _ in range(2):  # the second time into one that has stepped on
        with torch.no_grad():
            for parameter, weight in zip(mine, weights, strict=True):
                parameter.copy_(weight)
        adam.load_state_dict({**saved, "state": {i: {k: v.clone() for k, v in s.items()} for i, s in states.items()}})
        give(mine, 2)
        adam.clip_and_step(1.0)
        ends.append([p.detach().clone() for p in mine])
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


def test_parameters_that_have_moved_are_found(way: str) -> None:
    adam = Adam(mine := parameters(), **OPTIONS)
    for number in range(2):
        give(mine, number)
        adam.clip_and_step(1.0)
    mine[3].data = mine[3].data.clone()
    before = mine[3].detach().clone()
    give(mine, 2)
    adam.clip_and_step(1.0)
    assert not torch.equal(mine[3], before)


def test_a_nan_stays_visible(way: str) -> None:
    adam = Adam(mine := parameters(), **OPTIONS)
    for number in range(2):
        give(mine, number)
        if number:
            assert mine[2].grad is not None
            mine[2].grad[0] = torch.nan
        norms = adam.clip_and_step(1.0)
    assert norms[2].isnan()
    assert all(parameter.isnan().any() for parameter in mine)  # as with PyTorch: the whole gradient is scaled by it


def test_clipping_alone_is_that_of_torch() -> None:
    mine, theirs = parameters(), parameters()
    give(mine, 0)
    give(theirs, 0)
    norms = clip_gradient(mine, 0.1)
    total = nn.utils.clip_grad_norm_(theirs, 0.1)
    torch.testing.assert_close(norms.norm(), total)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)
