"""How cost and memory grow: with rows, with steps, with the hidden size, and with the length of a run (not at all)."""

# B rows, T steps, H hidden size

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from statistics import median

import psutil
import torch

from engram.agent.settings import PyAgent
from engram.bench.fit import fit_line
from engram.bench.options import Options
from engram.bench.ours import command
from engram.bench.policy import arena_observations, calls
from engram.bench.process import opened, thread_variables
from engram.bench.race import Contestant, run_race
from engram.bench.result import Result
from engram.bench.stepping import repeating

FACTORS = (1, 2, 3, 4)
CLEAR_PEAK = Path("/proc/self/clear_refs")  # of Linux: writing 5 lets the peak begin anew
RUN = ["env=recall", "trainer.num_envs=32", "trainer.num_workers=0", "trainer.bptt_horizon=8", "trainer.batch_size=256"]
RUN += ["trainer.minibatch_size=256", "trainer.update_epochs=1", "py_agent.hidden_size=32"]


def measure(options: Options, progress: Callable[[str], None]) -> Result:
    """Learning calls of `fast` on the arena's observations; a quarter of the largest size is the smallest."""
    result = Result("scale", options.to_json())
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
    result: Result, axis: str, sizes: list[tuple[int, int, int]], options: Options, progress: Callable[[str], None]
) -> None:
    threads = max(options.threads)
    place = {"rows": 0, "steps": 1, "hidden size": 2}[axis]
    megabytes, everybody = [], []
    for size in sizes:
        rows, steps, hidden = size
        spec, _, observations = arena_observations(rows, rows, steps)
        settings = PyAgent(name="fast", hidden_size=hidden)

        def make(spec=spec, settings=settings, observations=observations):
            return calls(spec, settings, observations, options.resets)

        progress(f"{axis}: memory of {size[place]}")
        with make() as step:
            torch.set_num_threads(threads)
            megabytes.append(peak_megabytes(step))
        everybody.append(Contestant(f"{axis} {size[place]}", repeating(make, threads), threads))
    race = run_race(
        f"fast, learning: {axis}", everybody, options.rounds, options.seconds, "steps", "time", progress=progress
    )
    sizes_of_axis = [float(size[place]) for size in sizes]
    for entry, size, peak in zip(race.entries, sizes, megabytes, strict=True):
        if entry.rate:
            entry.facts["ms a call"] = 1000 * size[0] * size[1] / entry.rate
        if peak is not None:
            entry.facts["peak MB"] = peak
    result.races.append(race)
    times = [float(entry.facts["ms a call"]) for entry in race.entries if "ms a call" in entry.facts]
    # A layer's weights grow with the square of its width, and so does their share of the work.
    against = [x * x for x in sizes_of_axis] if axis == "hidden size" else sizes_of_axis
    label = "hidden size²" if axis == "hidden size" else axis
    if len(times) == len(against):
        result.fits.append(fit_line(label, "ms a learning call", against, times))
    known = [peak for peak in megabytes if peak is not None]
    if len(known) == len(sizes_of_axis):
        result.fits.append(fit_line(axis, "peak MB of a learning call", sizes_of_axis, known))


def _measure_run(result: Result, options: Options, progress: Callable[[str], None]) -> None:
    """A small run of many epochs: its memory, and the seconds of an epoch, in ten parts."""
    progress(f"a run of {options.epochs} epochs")
    notes: dict[str, list[float]] = {"megabytes": [], "seconds": []}
    with opened(command(RUN, 1), thread_variables(1)) as process:
        while len(notes["seconds"]) < options.epochs:
            answer = process.ask({"measure": 0.5}, timeout=120.0)
            for name, values in notes.items():
                values += answer["notes"][name]
    size = max(1, options.epochs // 10)
    second_half = range(options.epochs // 2, options.epochs, size)  # the first has caches to fill
    for name, what in (("megabytes", "MB of the process"), ("seconds", "seconds an epoch")):
        parts = [median(notes[name][start : start + size]) for start in second_half]
        result.fits.append(fit_line("epochs of a run", what, [float(start) for start in second_half], parts))


def peak_megabytes(step: Callable[[], float]) -> float | None:
    """How much more memory a call needs, at most, than there was before it; None where the system cannot tell."""
    if not CLEAR_PEAK.exists():
        return None
    step()  # what is made once, such as gradients, is there afterwards
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
