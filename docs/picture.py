"""Draws the panel of a run, for the README: docs/picture.py runs/NAME PICTURE.svg."""

import io
import re
import sys
from pathlib import Path

from rich.console import CONSOLE_SVG_FORMAT, Console

from engram.display.panel import run_panel
from engram.display.watching import RunFollower

WIDTH, HEIGHT = 96, 30
# Installed fonts: a picture in a README cannot load any.
FONTS = "ui-monospace, Menlo, 'DejaVu Sans Mono', Consolas, monospace"


def main(directory: Path, picture: Path) -> None:
    follower = RunFollower(directory)
    follower.read(running=False)
    assert follower.progress is not None, f"{directory} has no plan.json"
    console = Console(file=io.StringIO(), record=True, width=WIDTH, height=HEIGHT, force_terminal=True)
    console.print(run_panel(follower.progress, WIDTH, HEIGHT))
    title = f"engram watch {follower.name}"
    svg = console.export_svg(title=title, code_format=svg_format(), unique_id="engram")
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(svg, encoding="utf-8")


def svg_format() -> str:
    """The SVG template of Rich without its web fonts."""
    template = re.sub(r" *@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    # Slightly larger than usual, so that the blocks of the chart touch.
    return template.replace("Fira Code, monospace", FONTS).replace("font-size: {char_height}px", "font-size: 21px")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
