"""What runs have learned, as a dated file and a picture: `python -m engram.bench.curves RUN… --picture SVG`."""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from engram.bench.fit import fit_line
from engram.bench.machine import describe
from engram.bench.result import new_file

POINTS = 120  # of a curve
WARM = 0.2  # of a run, after which a process should not grow any more
WIDTH, HEIGHT, MARGIN, ACROSS = 290, 190, 40, 3
LINES = ("#4c86a8", "#e09f3e", "#7fb069", "#b5546b", "#7d6b9e", "#8a8f98")
FONT = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"


def describe_run(directory: Path) -> dict[str, Any]:
    """A run's settings in short, its curve, and what a collapse or a leak would show in."""
    settings = yaml.safe_load((directory / "settings.yaml").read_text(encoding="utf-8"))
    lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    curve = [(record["steps"], record["return"]) for record in records if record["return"] is not None]
    warm = [record for record in records if record["steps"] >= WARM * records[-1]["steps"]]
    memory = [(record["steps"] / 1e6, record["process/megabytes"]) for record in warm]
    last = [value for _, value in curve[-max(1, len(curve) // 20) :]]
    return {
        "task": _task(settings),
        "settings": {name: settings.get(name) for name in ("env", "agent", "py_agent", "trainer")},
        "seed": settings["seed"],
        "steps": records[-1]["steps"],
        "seconds": round(records[-1]["time/seconds"], 1),
        "return": round(statistics.fmean(last), 4) if last else None,
        "curve": [[steps, round(value, 4)] for steps, value in curve[:: max(1, len(curve) // POINTS)]],
        "largest_replay_error": max(record["memory/replay_error"] for record in records),
        "largest_kl": round(max(record["loss/kl"] for record in records), 5),
        "gradient_norm": _spread([record["gradient/norm"] for record in records]),
        "megabytes": _spread([megabytes for _, megabytes in memory]),
        "megabytes_per_million_steps": _slope(memory),
    }


def _task(settings: dict[str, Any]) -> str:
    env, trainer = settings["env"], settings["trainer"]
    policy = settings.get("agent") or settings["py_agent"]
    form = "agent" if settings.get("agent") else "py_agent"
    place = env.get("id") or env["kind"]
    several = f" of {env['agents']}" if env.get("agents", 1) > 1 else ""
    wrapped = " masked" if "mask_velocity" in (env.get("wrappers") or []) else ""
    delay = f" delay {env['delay']}" if "delay" in env else ""
    memory = "" if trainer["memory"] == "carry" else f", memory {trainer['memory']}"
    return f"{place}{several}{wrapped}{delay}, {form}={policy.get('name') or policy.get('path')}{memory}"


def _slope(points: Sequence[tuple[float, float]]) -> float | None:
    if len(points) < 3:
        return None
    x, y = zip(*points, strict=True)
    return round(fit_line("million steps", "megabytes", x, y).slope, 3)


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "smallest": round(min(values), 4),
        "median": round(statistics.median(values), 4),
        "largest": round(max(values), 4),
    }


def picture(runs: Sequence[dict[str, Any]]) -> str:
    """A panel for each task, a line for each seed."""
    panels = [(task, list(each)) for task, each in groupby(sorted(runs, key=_by_task), key=lambda run: run["task"])]
    width, height = ACROSS * WIDTH, -(-len(panels) // ACROSS) * HEIGHT
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="{FONT}" font-size="11">'
    )
    lines = [head, f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>']
    for number, (task, each) in enumerate(panels):
        x, y = number % ACROSS * WIDTH, number // ACROSS * HEIGHT
        lines += [f'<g transform="translate({x} {y})">', *_panel(task, each), "</g>"]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _by_task(run: dict[str, Any]) -> tuple[str, int]:
    return run["task"], run["seed"]


def _panel(task: str, runs: Sequence[dict[str, Any]]) -> Iterator[str]:
    most = max(run["steps"] for run in runs)
    values = [value for run in runs for _, value in run["curve"]]
    low, high = min(0.0, *values), max(values)
    right, bottom = WIDTH - 12, HEIGHT - 24

    def place(steps: float, value: float) -> tuple[float, float]:
        across = MARGIN + (right - MARGIN) * steps / most
        return across, bottom - (bottom - 30) * (value - low) / ((high - low) or 1)

    yield f'<text x="{MARGIN}" y="18" font-weight="600" font-size="12">{escape(task.replace("py_agent=", ""))}</text>'
    for value in (low, high):
        _, y = place(0, value)
        yield f'<line x1="{MARGIN}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>'
        yield f'<text x="{MARGIN - 5}" y="{y + 4:.1f}" text-anchor="end" fill="#666666">{value:.3g}</text>'
    yield f'<text x="{right}" y="{HEIGHT - 8}" text-anchor="end" fill="#666666">{most:,} steps</text>'
    for number, run in enumerate(runs):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in run["curve"]))
        colour = LINES[number % len(LINES)]
        yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.4"/>'


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m engram.bench.curves", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="directories of runs")
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="where the result is written")
    parser.add_argument("--picture", type=Path, help="draw the curves too")
    options = parser.parse_args(words)
    runs = sorted((describe_run(directory) for directory in options.runs), key=_by_task)
    date = datetime.now().astimezone().isoformat(timespec="seconds")
    path = new_file(options.out, "learning", date)
    result = {"schema": 1, "verb": "learning", "date": date, "machine": describe(), "runs": runs}
    path.write_text(json.dumps(result, allow_nan=False) + "\n", encoding="utf-8")
    print(f"wrote {path}")
    if options.picture:
        options.picture.write_text(picture(runs), encoding="utf-8")
        print(f"wrote {options.picture}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
