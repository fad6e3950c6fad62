"""Growth of time and memory with rows, steps, hidden size and the length of a run."""

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from statistics import median

import psutil
import torch

from engram.agent.settings import PyAgent
from engram.bench.policy import arena_observations, policy_calls
from engram.bench.process import start_program, thread_variables
from engram.bench.race import Contestant, Options, in_process, run_race
from engram.bench.result import BenchResult, fit_line
from engram.bench.train import command

FACTORS = (1, 2, 3, 4)
CLEAR_PEAK = Path("/proc/self/clear_refs")  # Linux: writing 5 resets the peak
RUN = ["env=recall", "trainer.num_envs=32", "trainer.num_workers=0", "trainer.bptt_horizon=8", "trainer.batch_size=256"]
RUN += ["trainer.minibatch_size=256", "trainer.update_epochs=1", "py_agent.hidden_size=32"]


def measure(options: Options, progress: Callable[[str], None]) -> BenchResult:
    """Learning calls of `fast` on observations of the arena, at one to four times the smallest size."""
    result = BenchResult("scale", options.to_json())
    rows, steps, hidden = max(options.rows), options.steps, options.hidden
    axes = {
        "rows": [(rows * k // 4, steps, hidden) for k in FACTORS],
        "steps": [(rows // 4, steps * k, hidden) for k in FACTORS],
        "hidden size": [(rows // 4, steps, hidden * k) for k in FACTORS],
    }
    for axis, sizes in axes.items():
        _measure_axis(result, axis, sizes, options, progress)
    _measure_run(result, options, progress)
    return result


def _measure_axis(
    result: BenchResult, axis: str, sizes: list[tuple[int, int, int]], options: Options, progress: Callable[[str], None]
) -> None:
    threads = max(options.threads)
    column = {"rows": 0, "steps": 1, "hidden size": 2}[axis]
    megabytes, contestants = [], []
    for size in sizes:
        rows, steps, hidden = size
        spec, _, observations = arena_observations(rows, rows, steps)
        settings = PyAgent(name="fast", hidden_size=hidden)

        def make(spec=spec, settings=settings, observations=observations):
            return policy_calls(spec, settings, observations, options.resets)

        progress(f"{axis}: memory of {size[column]}")
        with make() as step:
            torch.set_num_threads(threads)
            megabytes.append(peak_megabytes(step))
        contestants.append(Contestant(f"{axis} {size[column]}", in_process(make, threads), threads))
    race = run_race(
        f"fast, learning: {axis}", contestants, options.rounds, options.seconds, "steps", "time", progress=progress
    )
    sizes_of_axis = [float(size[column]) for size in sizes]
    for entry, size, peak in zip(race.entries, sizes, megabytes, strict=True):
        if entry.rate:
            entry.facts["ms per call"] = 1000 * size[0] * size[1] / entry.rate
        if peak is not None:
            entry.facts["peak MB"] = peak
    result.races.append(race)
    times = [float(entry.facts["ms per call"]) for entry in race.entries if "ms per call" in entry.facts]
    # The work of a layer grows with the square of its width.
    against = [x * x for x in sizes_of_axis] if axis == "hidden size" else sizes_of_axis
    label = "hidden size²" if axis == "hidden size" else axis
    if len(times) == len(against):
        result.fits.append(fit_line(label, "ms per learning call", against, times))
    measured = [peak for peak in megabytes if peak is not None]
    if len(measured) == len(sizes_of_axis):
        result.fits.append(fit_line(axis, "peak MB per learning call", sizes_of_axis, measured))


def _measure_run(result: BenchResult, options: Options, progress: Callable[[str], None]) -> None:
    """Memory and seconds per epoch of a small run, as medians over tenths of the run."""
    progress(f"training for {options.epochs} epochs")
    notes: dict[str, list[float]] = {"megabytes": [], "seconds": []}
    with start_program(command(RUN, 1), thread_variables(1)) as process:
        while len(notes["seconds"]) < options.epochs:
            reply = process.request({"measure": 0.5}, timeout=120.0)
            for name, values in notes.items():
                values += reply["notes"][name]
    size = max(1, options.epochs // 10)
    second_half = range(options.epochs // 2, options.epochs, size)  # the first half fills caches
    for name, what in (("megabytes", "MB of the process"), ("seconds", "seconds per epoch")):
        parts = [median(notes[name][start : start + size]) for start in second_half]
        result.fits.append(fit_line("epochs of a run", what, [float(start) for start in second_half], parts))


def peak_megabytes(step: Callable[[], float]) -> float | None:
    """Peak memory of a call beyond what was in use before it; None if the system does not report it."""
    if not CLEAR_PEAK.exists():
        return None
    step()  # allocates what is kept, such as gradients
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = psutil.Process().memory_info().rss
    try:
        CLEAR_PEAK.write_text("5")
    except OSError:
        return None
    step()
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    return max(0.0, (peak - before) / 2**20)
