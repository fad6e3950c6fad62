"""Draws the terminal at the end of a run, for the README: docs/picture.py runs/NAME PICTURE.svg."""

import io
import json
import re
import sys
from pathlib import Path

from rich.console import CONSOLE_SVG_FORMAT, Console

from engram.agent.metta_agent import MettaAgent
from engram.config.load import load_run
from engram.cores import available_cores
from engram.display.panel import run_panel
from engram.display.progress import RunProgress
from engram.display.summary import summary
from engram.env.registry import make_spec
from engram.training.run import RunPlan, RunResult, choose_device
from engram.training.sizes import resolve_sizes

WIDTH, HEIGHT = 96, 32
# Installed fonts: a picture in a README cannot load any.
FONTS = "ui-monospace, Menlo, 'DejaVu Sans Mono', Consolas, monospace"


def main(directory: Path, picture: Path) -> None:
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    progress = RunProgress(plan_of(directory), clock=lambda: 0.0)
    for record in records:
        progress.add(record)
    progress.end("done" if progress.fraction_done == 1 else "stopped")
    console = Console(file=io.StringIO(), record=True, width=WIDTH, height=HEIGHT, force_terminal=True)
    console.print(run_panel(progress, WIDTH, HEIGHT))
    console.print("", *summary(result_of(directory, progress), trained=True), "", sep="\n", highlight=False)
    svg = console.export_svg(title="./tools/train.py", code_format=svg_format(), unique_id="engram")
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(svg, encoding="utf-8")


def plan_of(directory: Path) -> RunPlan:
    settings = load_run(directory)
    spec, device = make_spec(settings.env), choose_device(settings.device).type
    return RunPlan(
        run=settings.run,
        policy=settings.policy.name,
        env=spec,
        sizes=resolve_sizes(settings.trainer, spec.agents, device, available_cores()),
        device=device,
        parameters=sum(p.numel() for p in MettaAgent(spec, settings.policy).parameters()),
        total_timesteps=settings.trainer.total_timesteps,
        steps_done=0,
    )


def result_of(directory: Path, progress: RunProgress) -> RunResult:
    checkpoint = Path("runs", progress.plan.run, "checkpoints", max((directory / "checkpoints").iterdir()).name)
    mean_return = progress.value("return")
    return RunResult(
        progress.plan.run, directory, checkpoint, progress.plan.env, progress.steps, progress.seconds, mean_return
    )


def svg_format() -> str:
    """The SVG template of Rich without its web fonts."""
    template = re.sub(r" *@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    # Slightly larger than usual, so that the blocks of the chart touch.
    return template.replace("Fira Code, monospace", FONTS).replace("font-size: {char_height}px", "font-size: 21px")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
