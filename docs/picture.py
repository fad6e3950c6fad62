"""Draws the terminal at the end of a run that really was, for the README: docs/picture.py runs/NAME PICTURE.svg."""

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
from engram.display.story import Story
from engram.display.summary import summary
from engram.env.registry import make_spec
from engram.training.run import Plan, Result, choose_device
from engram.training.sizes import resolve_sizes

WIDTH, HEIGHT = 96, 32
# Fonts that readers have: a picture in a README may not load any.
FONTS = "ui-monospace, Menlo, 'DejaVu Sans Mono', Consolas, monospace"


def main(directory: Path, picture: Path) -> None:
    records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    story = Story(plan_of(directory), clock=lambda: 0.0)
    for record in records:
        story.add(record)
    story.end("done" if story.share_done == 1 else "stopped")
    console = Console(file=io.StringIO(), record=True, width=WIDTH, height=HEIGHT, force_terminal=True)
    console.print(run_panel(story, WIDTH, HEIGHT))
    console.print("", *summary(result_of(directory, story), trained=True), "", sep="\n", highlight=False)
    svg = console.export_svg(title="./tools/train.py", code_format=svg_format(), unique_id="engram")
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(svg, encoding="utf-8")


def plan_of(directory: Path) -> Plan:
    settings = load_run(directory)
    spec, device = make_spec(settings.env), choose_device(settings.device).type
    return Plan(
        run=settings.run,
        policy=settings.policy.name,
        env=spec,
        sizes=resolve_sizes(settings.trainer, spec.agents, device, available_cores()),
        device=device,
        parameters=sum(p.numel() for p in MettaAgent(spec, settings.policy).parameters()),
        total_timesteps=settings.trainer.total_timesteps,
        steps_done=0,
    )


def result_of(directory: Path, story: Story) -> Result:
    checkpoint = Path("runs", story.plan.run, "checkpoints", max((directory / "checkpoints").iterdir()).name)
    mean_return = story.value("return")
    return Result(story.plan.run, directory, checkpoint, story.plan.env, story.steps, story.seconds, mean_return)


def svg_format() -> str:
    """Rich's own, without the fonts that it would fetch."""
    own = re.sub(r" *@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    # A little larger than usual: then the blocks of the chart touch each other.
    return own.replace("Fira Code, monospace", FONTS).replace("font-size: {char_height}px", "font-size: 21px")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
