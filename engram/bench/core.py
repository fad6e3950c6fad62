"""The recurrent core against `torch.nn.LSTM`: forward and backward over segments, and the single step of acting.

Ours forgets exactly where episodes start; `nn.LSTM` cannot, and is not asked to: it is the price of no resets at all.
"""

# T steps, B rows, H hidden size, L layers

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn

from engram.agent.recurrent.core import State
from engram.agent.recurrent.lstm import LSTM
from engram.bench.options import Options
from engram.bench.race import Contestant, Race, run_race
from engram.bench.result import Bar, Result
from engram.bench.stepping import Step, repeating
from engram.native.library import kernels, without_kernels

TORCH, NATIVE, PURE = "nn.LSTM", "native", "pure PyTorch"


def measure(options: Options, progress: Callable[[str], None]) -> Result:
    result = Result("core", options.to_json())
    for rows in options.rows:
        race = _race(options, rows, acting=False, progress=progress)
        result.races.append(race)
        result.bars += [
            Bar(f"B {rows}, forward and backward: native ÷ nn.LSTM", race.ratio(NATIVE, TORCH), at_most=0.85),
            Bar(f"B {rows}, forward and backward: pure PyTorch ÷ nn.LSTM", race.ratio(PURE, TORCH), at_most=1.25),
        ]
    race = _race(options, max(options.rows), acting=True, progress=progress)
    result.races.append(race)
    best = min((r for name in (NATIVE, PURE) if (r := race.ratio(name, TORCH)) is not None), default=None)
    result.bars.append(Bar(f"B {max(options.rows)}, one step: ours ÷ nn.LSTM", best, at_most=0.8))
    return result


def _race(options: Options, rows: int, acting: bool, progress: Callable[[str], None]) -> Race:
    steps = 1 if acting else options.steps
    what = "one step, without gradients" if acting else "forward and backward"
    name = f"LSTM {options.layers} x {options.hidden}, T {steps}, B {rows}, p {options.resets:g}: {what}"

    def contestants(threads: int) -> Iterator[Contestant]:
        yield Contestant(TORCH, repeating(lambda: _theirs(options, steps, rows, acting), threads), threads)
        if kernels() is not None:
            yield Contestant(NATIVE, repeating(lambda: _ours(options, steps, rows, acting), threads), threads)
        pure = repeating(lambda: _ours(options, steps, rows, acting, without_kernels), threads)
        yield Contestant(PURE, pure, threads)

    everybody = [contestant for threads in options.threads for contestant in contestants(threads)]
    return run_race(name, everybody, options.rounds, options.seconds, "calls", "time", TORCH, progress)


@contextmanager
def _theirs(options: Options, steps: int, rows: int, acting: bool) -> Iterator[Step]:
    torch.manual_seed(0)
    lstm = nn.LSTM(options.hidden, options.hidden, options.layers)
    inputs, state = _inputs(options, steps, rows)
    yield _step(lambda x: lstm(x, (state.h, state.c))[0], lstm, inputs, acting)


@contextmanager
def _ours(
    options: Options,
    steps: int,
    rows: int,
    acting: bool,
    mode: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Iterator[Step]:
    torch.manual_seed(0)
    core = LSTM(options.hidden, options.hidden, options.layers)
    inputs, state = _inputs(options, steps, rows)
    starts = torch.rand(steps, rows) < options.resets
    memory = core.pack(state) if acting else state  # as the rows' memory is stored, and written over by acting
    room = memory if acting else None
    step = _step(lambda x: core(x, memory, starts, room)[0], core, inputs, acting)

    def in_mode() -> float:
        with mode():
            return step()

    yield in_mode


def _inputs(options: Options, steps: int, rows: int) -> tuple[torch.Tensor, State]:
    inputs = torch.randn(steps, rows, options.hidden)
    return inputs, State(*torch.randn(2, options.layers, rows, options.hidden))


def _step(run: Callable[[torch.Tensor], torch.Tensor], module: nn.Module, inputs: torch.Tensor, acting: bool) -> Step:
    weight = torch.randn(inputs.shape)

    def act() -> float:
        with torch.no_grad():
            run(inputs)
        return 1

    def learn() -> float:
        leaf = inputs.detach().requires_grad_()  # an encoder before it wants a gradient too
        module.zero_grad(set_to_none=True)
        run(leaf).backward(weight)
        return 1

    return act if acting else learn
