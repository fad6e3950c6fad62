"""The LSTM core against `torch.nn.LSTM`: forward and backward over segments, and one step of acting.

The core resets memory where episodes start; `nn.LSTM` runs without any resets.
"""

# T steps, B rows, H hidden size, L layers

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn

from engram.agent.recurrent.lstm import LSTM
from engram.bench.race import Contestant, Options, Race, Step, in_process, run_race
from engram.bench.result import BenchResult, Threshold
from engram.native.library import kernels, without_kernels

TORCH, NATIVE, PURE = "nn.LSTM", "native", "pure PyTorch"


def measure(options: Options, progress: Callable[[str], None]) -> BenchResult:
    result = BenchResult("core", options.to_json())
    for rows in options.rows:
        race = _race(options, rows, acting=False, progress=progress)
        result.races.append(race)
        result.thresholds += [
            Threshold(f"B {rows}, forward and backward: native ÷ nn.LSTM", race.ratio(NATIVE, TORCH), at_most=0.85),
            Threshold(f"B {rows}, forward and backward: pure PyTorch ÷ nn.LSTM", race.ratio(PURE, TORCH), at_most=1.25),
        ]
    race = _race(options, max(options.rows), acting=True, progress=progress)
    result.races.append(race)
    best = min((r for name in (NATIVE, PURE) if (r := race.ratio(name, TORCH)) is not None), default=None)
    result.thresholds.append(Threshold(f"B {max(options.rows)}, one step: Engram ÷ nn.LSTM", best, at_most=0.8))
    return result


def _race(options: Options, rows: int, acting: bool, progress: Callable[[str], None]) -> Race:
    steps = 1 if acting else options.steps
    what = "one step, without gradients" if acting else "forward and backward"
    name = f"LSTM {options.layers} x {options.hidden}, T {steps}, B {rows}, p {options.resets:g}: {what}"

    def contestants(threads: int) -> Iterator[Contestant]:
        yield Contestant(TORCH, in_process(lambda: _torch_lstm(options, steps, rows, acting), threads), threads)
        if kernels() is not None:
            yield Contestant(NATIVE, in_process(lambda: _engram_lstm(options, steps, rows, acting), threads), threads)
        pure = in_process(lambda: _engram_lstm(options, steps, rows, acting, without_kernels), threads)
        yield Contestant(PURE, pure, threads)

    entrants = [contestant for threads in options.threads for contestant in contestants(threads)]
    return run_race(name, entrants, options.rounds, options.seconds, "calls", "time", TORCH, progress)


@contextmanager
def _torch_lstm(options: Options, steps: int, rows: int, acting: bool) -> Iterator[Step]:
    torch.manual_seed(0)
    lstm = nn.LSTM(options.hidden, options.hidden, options.layers)
    inputs = torch.randn(steps, rows, options.hidden)
    h, c = torch.randn(2, options.layers, rows, options.hidden)
    yield _step(lambda x: lstm(x, (h, c))[0], lstm, inputs, acting)


@contextmanager
def _engram_lstm(
    options: Options,
    steps: int,
    rows: int,
    acting: bool,
    context: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Iterator[Step]:
    torch.manual_seed(0)
    core = LSTM(options.hidden, options.hidden, options.layers)
    inputs, memory = torch.randn(steps, rows, options.hidden), torch.randn(rows, *core.memory_shape)
    starts = torch.rand(steps, rows) < options.resets
    out = memory if acting else None
    step = _step(lambda x: core(x, memory, starts, out)[0], core, inputs, acting)

    def step_in_context() -> float:
        with context():
            return step()

    yield step_in_context


def _step(run: Callable[[torch.Tensor], torch.Tensor], module: nn.Module, inputs: torch.Tensor, acting: bool) -> Step:
    weight = torch.randn(inputs.shape)

    def act() -> float:
        with torch.no_grad():
            run(inputs)
        return 1

    def learn() -> float:
        leaf = inputs.detach().requires_grad_()  # as with an encoder in front
        module.zero_grad(set_to_none=True)
        run(leaf).backward(weight)
        return 1

    return act if acting else learn
