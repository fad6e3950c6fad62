"""Bars of results of `engram bench peers` or `train`, split by phase: `python -m engram.bench.picture RESULT… SVG`."""

import json
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

WIDTH, LEFT, RIGHT, BAR, GAP, TOP = 860, 210, 190, 22, 10, 56
COLOURS = {"environment": "#7fb069", "inference": "#4c86a8", "learning": "#e09f3e", "other": "#b0b4ba"}
FONT = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"
STEPS = 100_000  # a bar is the time that so many steps take


def picture(result: dict[str, Any]) -> str:
    """One panel a race, in it a bar for the best of each name, the fastest first."""
    panels = [race for race in result["races"] if any(entry["best"] for entry in race["entries"])]
    heights = [TOP + len(_bars(race)) * (BAR + GAP) + 14 for race in panels]
    height = sum(heights) + 48
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="{FONT}" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
    ]
    y = 0
    for race, size in zip(panels, heights, strict=True):
        lines += _panel(race, y)
        y += size
    lines += _legend(result, y + 18)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _bars(race: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted((entry for entry in race["entries"] if entry["best"]), key=lambda entry: -entry["rate"])


def _panel(race: dict[str, Any], y: int) -> Iterator[str]:
    bars = _bars(race)
    longest = STEPS / bars[-1]["rate"]
    yield _text(20, y + 26, race["name"], weight="600")
    yield _text(20, y + 44, f"seconds for {STEPS:,} steps: shorter is faster", "#666666")
    for number, entry in enumerate(bars):
        top = y + TOP + number * (BAR + GAP)
        ours = entry["name"] == race["baseline"]
        yield _text(LEFT - 10, top + 16, entry["name"], anchor="end", weight="700" if ours else "400")
        x, scale = float(LEFT), (WIDTH - LEFT - RIGHT) / longest
        for phase, seconds in _phases(entry).items():
            width = seconds * scale
            yield f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{BAR}" fill="{COLOURS[phase]}"/>'
            x += width
        figure = f"{STEPS / entry['rate']:.1f} s, {entry['rate']:,.0f} steps/s"
        yield _text(x + 8, top + 16, figure, "#222222", weight="700" if ours else "400")


def _phases(entry: dict[str, Any]) -> dict[str, float]:
    """Seconds of a bar by phase; what no phase claims is other."""
    total = STEPS / entry["rate"]
    known = {phase: share * total for phase, share in entry["phases"].items() if phase in COLOURS}
    parts = {phase: known.get(phase, 0.0) for phase in COLOURS}
    parts["other"] += max(0.0, total - sum(parts.values()))
    return parts


def _legend(result: dict[str, Any], y: int) -> Iterator[str]:
    x = 20
    for phase, colour in COLOURS.items():
        yield f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colour}"/>'
        yield _text(x + 18, y + 11, phase, "#444444")
        x += 34 + 8 * len(phase)
    machine = result["machine"]
    place = f"{machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}, {result['date'][:10]}"
    yield _text(WIDTH - 20, y + 11, place, "#888888", anchor="end")


def _text(x: float, y: float, text: str, colour: str = "#111111", anchor: str = "start", weight: str = "400") -> str:
    style = f'fill="{colour}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x:.1f}" y="{y}" {style}>{escape(text)}</text>'


def main(words: list[str]) -> int:
    if len(words) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    *sources, target = map(Path, words)
    results = [json.loads(source.read_text(encoding="utf-8")) for source in sources]
    together = {**results[0], "races": [race for result in results for race in result["races"]]}
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(picture(together), encoding="utf-8")
    print(f"wrote {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
