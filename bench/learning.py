"""Collects runs into one result file: `make bench ARGS="learning RUN…"`."""

import statistics
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from engram.bench.result import describe_machine, fit_line, write
from engram.cli.arguments import ArgumentParser
from engram.stored.metrics import read_metrics

POINTS = 120  # per curve
WARM_UP = 0.2  # share of a run after which the memory of the process should not grow


def main(argv: Sequence[str]) -> int:
    parser = ArgumentParser(prog="make bench ARGS=learning", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="directories of runs")
    parser.add_argument(
        "--out", type=Path, default=Path("bench-results/learning.json"), help="where to write the result"
    )
    options = parser.parse_args(argv)
    runs = sorted((summarize_run(directory) for directory in options.runs), key=lambda run: (run["task"], run["seed"]))
    date = datetime.now().astimezone().isoformat(timespec="seconds")
    write({"schema": 1, "verb": "learning", "date": date, "machine": describe_machine(), "runs": runs}, options.out)
    print(f"wrote {options.out}")
    return 0


def summarize_run(directory: Path) -> dict[str, Any]:
    """The settings of a run, its curve, and the figures in which a collapse or a memory leak shows."""
    settings = yaml.safe_load((directory / "settings.yaml").read_text(encoding="utf-8"))
    records = read_metrics(directory)
    curve = [(record["steps"], record["return"]) for record in records if record["return"] is not None]
    after_warm_up = [record for record in records if record["steps"] >= WARM_UP * records[-1]["steps"]]
    megabytes = [(record["steps"] / 1e6, record["process/megabytes"]) for record in after_warm_up]
    last_returns = [value for _, value in curve[-max(1, len(curve) // 20) :]]
    return {
        "task": _title(settings),
        "settings": {name: settings.get(name) for name in ("env", "agent", "py_agent", "trainer")},
        "seed": settings["seed"],
        "steps": records[-1]["steps"],
        "seconds": round(records[-1]["time/seconds"], 1),
        "return": round(statistics.fmean(last_returns), 4) if last_returns else None,
        "curve": [[steps, round(value, 4)] for steps, value in curve[:: max(1, len(curve) // POINTS)]],
        "largest_replay_error": max(record["memory/replay_error"] for record in records),
        "largest_kl": round(max(record["loss/kl"] for record in records), 5),
        "gradient_norm": _spread([record["gradient/norm"] for record in records]),
        "megabytes": _spread([value for _, value in megabytes]),
        "megabytes_per_million_steps": _slope(megabytes),
    }


def _title(settings: dict[str, Any]) -> str:
    env, trainer = settings["env"], settings["trainer"]
    policy = settings.get("agent") or settings["py_agent"]
    form = "agent" if settings.get("agent") else "py_agent"
    world = env.get("id") or env["kind"]
    agents = f" of {env['agents']}" if env.get("agents", 1) > 1 else ""
    masked = " masked" if "mask_velocity" in (env.get("wrappers") or []) else ""
    delay = f" delay {env['delay']}" if "delay" in env else ""
    memory = "" if trainer["memory"] == "carry" else f", memory {trainer['memory']}"
    return f"{world}{agents}{masked}{delay}, {form}={policy.get('name') or policy.get('path')}{memory}"


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
