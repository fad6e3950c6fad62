"""The panel of a run in training with a chart of its returns, laid out for the current size of the terminal."""

from collections.abc import Iterable
from itertools import groupby
from math import ceil, isfinite
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich import box
from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from engram.display.formatting import MISSING, clock, count, megabytes, number, percent, plural, score
from engram.display.progress import ReturnCurve, RunProgress
from engram.display.summary import memory_threshold
from engram.env.spec import EnvSpec

if TYPE_CHECKING:
    from engram.training.run import RunPlan


WIDEST = 120
CHART_ROWS = 5
REPLAY_BOUND = 1e-5  # float32 rounding; a larger error means that acting and learning used different memory
PHASE_STYLES = {"environment": "blue", "inference": "magenta", "learning": "cyan", "other": "bright_black"}
CHECKPOINT = "checkpoint"  # the epoch of the last one, which training adds to the record
MIN_CHART_ROWS = 3  # kept when statistics of the environment need rows
BLOCKS = " ▁▂▃▄▅▆▇█"
BELOW, ABOVE, LINE = "cyan", "green", "yellow"
METRICS = {  # label -> key of the record, most important first: a small terminal shows only the first ones
    "episode length": "episode/length",
    "policy loss": "loss/policy",
    "value loss": "loss/value",
    "entropy": "loss/entropy",
    "KL": "loss/kl",
    "clip fraction": "loss/clip_fraction",
    "explained var.": "value/explained_variance",
    "learning rate": "schedule/optimizer.learning_rate",
    "gradient norm": "gradient/norm",
    "replay error": "memory/replay_error",
    "core gradient": "gradient/norm_recurrent",
    "memory norm": "memory/norm",
    "process memory": "process/megabytes",
    "checkpoint": CHECKPOINT,
}
METRIC_WIDTH = 24
GAP = 2  # columns between two metrics
FORMATS = {"loss/clip_fraction": percent, "value/explained_variance": score, "process/megabytes": megabytes}


def run_panel(progress: RunProgress, width: int, height: int) -> Panel:
    """The panel for a terminal of this size."""
    width = min(width, WIDEST)
    inner = max(width - 4, 1)
    header, done, speed = _header(progress.plan, inner), _progress(progress, inner), _speed(progress, inner)
    returns = _returns(progress, inner)
    frame_and_blanks = 7  # including the line of the cursor below the panel
    free_rows = height - frame_and_blanks - sum(map(len, (header, done, speed, returns)))
    columns = min(max((inner + GAP) // (METRIC_WIDTH + GAP), 1), 4)
    rows_without_statistics = ceil(len(METRICS) / columns)
    all_rows = ceil((len(METRICS) + len(progress.statistics)) / columns)
    # All metrics leave the chart at least one row, statistics of the environment leave it MIN_CHART_ROWS.
    wanted_rows = min(all_rows, max(free_rows - MIN_CHART_ROWS, rows_without_statistics))
    metric_rows = max(min(wanted_rows, free_rows - 1), 0)
    chart_rows = min(max(free_rows - metric_rows, 1), CHART_ROWS)
    blank = Text()
    body = Group(
        *header,
        blank,
        *done,
        blank,
        *speed,
        blank,
        *returns,
        *_labelled_chart(progress, inner, chart_rows),
        blank,
        *_metrics(progress, inner, columns, metric_rows),
    )
    return Panel(body, title=_title(progress), title_align="left", box=box.ROUNDED, border_style="dim", width=width)


def _title(progress: RunProgress) -> Text:
    endings = {"done": (" done", "green not dim"), "stopped": (" stopped", "yellow not dim"), None: ("", "")}
    return Text.assemble("engram ", (progress.plan.run, "bold not dim"), endings[progress.ending])


def _header(plan: "RunPlan", width: int) -> list[Text]:
    sizes, agents = plan.sizes, plan.env.agents
    envs = plural(sizes.num_envs, "environment") + (f" of {agents} agents" if agents > 1 else "")
    segments = f"{plural(sizes.segments, 'segment')} of {plural(sizes.horizon, 'step')}"
    what = [f"{plan.policy} on {plan.env.name}", f"{count(plan.parameters)} parameters", plan.device]
    how = [envs, plural(sizes.num_workers, "worker"), segments, f"minibatch {count(sizes.minibatch_size)}"]
    return [*_wrap(what, width, "bold"), *_wrap(how, width)]


def _progress(progress: RunProgress, width: int) -> list[Text]:
    done = f"{int(100 * progress.fraction_done)}%"
    parts = [f"{count(progress.steps)} of {count(progress.plan.total_timesteps)} steps"]
    if progress.record:
        parts.append(f"epoch {count(progress.epoch)}")
    elif not progress.ending:
        parts.append("in the first epoch")
    parts.append(f"took {clock(progress.seconds)}" if progress.ending else f"{clock(progress.seconds)} elapsed")
    if progress.seconds_left is not None:
        parts.append(f"{clock(progress.seconds_left)} left")
    style = "green" if progress.ending == "done" else "cyan"
    return [_bar([(style, progress.fraction_done)], width, f"{done:>6}"), *_wrap(parts, width, "")]


def _speed(progress: RunProgress, width: int) -> list[Text]:
    fractions = progress.time_fractions
    shown = [phase for phase in PHASE_STYLES if phase != "other" or fractions.get(phase, 0.0) >= 0.05]
    legend = [Text(f"{phase} {percent(fractions.get(phase))}", PHASE_STYLES[phase]) for phase in shown]
    parts = [(PHASE_STYLES[phase], fraction) for phase, fraction in fractions.items() if phase != "other"]
    return [_bar(parts, width, f"  {count(progress.steps_per_second)} steps/s"), *_wrap(legend, width)]


def _returns(progress: RunProgress, width: int) -> list[Text]:
    value, env = progress.value("return"), progress.plan.env
    ceiling, threshold = env.memoryless_ceiling, memory_threshold(env)
    parts = [Text.assemble("return ", (score(value), "bold"))]
    if progress.best is not None:
        parts.append(Text(f"best {score(progress.best[0])} at {count(progress.best[1])} steps", "dim"))
    if value is None:
        parts = [Text("no episode has ended yet", "dim")]
    if ceiling is not None:
        above = value is not None and threshold is not None and value > threshold
        parts.append(Text(f"without memory at most {score(ceiling)}", "green" if above else "yellow"))
    return _wrap(parts, width)


def _labelled_chart(progress: RunProgress, width: int, rows: int) -> Iterable[Text]:
    scale = Scale.of(progress.curve, progress.plan.env)
    chart_labels = labels(scale, rows)
    label_width = max(label.cell_len for label in chart_labels) + 1
    if rows == 1 or width < 3 * label_width:
        return chart(progress.curve, scale, width, rows)
    lines = chart(progress.curve, scale, width - label_width, rows)
    return [line.append(" ").append_text(label) for line, label in zip(lines, chart_labels, strict=True)]


def _metrics(progress: RunProgress, width: int, columns: int, rows: int) -> list[Text]:
    """Metrics in columns that fill the width, ordered from top to bottom."""
    ends = [round((column + 1) * (width + GAP) / columns) for column in range(columns)]
    widths = [end - start - GAP for start, end in zip([0, *ends], ends, strict=False)]
    lines = [Text(no_wrap=True) for _ in range(rows)]
    shown = {**METRICS, **progress.statistics}
    for position, (label, name) in enumerate([*shown.items()][: rows * columns]):
        column, row = divmod(position, rows)
        lines[row].append(" " * GAP if column else "").append_text(_metric(progress, label, name, widths[column]))
    return lines


def _metric(progress: RunProgress, label: str, name: str, width: int) -> Text:
    value = progress.value(name)
    if value is None:
        shown = Text(MISSING, "dim")
    elif not isfinite(value):
        shown = Text(str(value), "bold red")
    elif name == CHECKPOINT:
        shown = Text(f"epoch {count(value)}" if value else "none yet")
    elif name == "memory/replay_error":
        shown = Text.assemble(f"{number(value)} ", ("✓", "green") if value < REPLAY_BOUND else ("✗", "bold red"))
    else:
        shown = Text(FORMATS.get(name, number)(value))
    label_width = max(width - shown.cell_len - 1, 0)
    if len(label) > label_width:
        label = f"{label[: label_width - 1]}…" if label_width else ""
    return Text.assemble((f"{label:<{label_width}} ", "dim"), shown)


def _bar(parts: list[tuple[str, float]], width: int, label: str) -> Text:
    """A bar with a label after it. Each part is a (style, fraction of the length)."""
    length = max(width - len(label), 1)
    text, start, end = Text(no_wrap=True), 0, 0.0
    for style, fraction in parts:
        end += fraction * length
        text.append("━" * (round(end) - start), style)
        start = round(end)
    return text.append("─" * (length - start), "bright_black").append(label, "bold")


def _wrap(parts: Iterable[str | Text], width: int, first: str = "dim") -> list[Text]:
    """Join parts by dots and wrap them into lines; `first` is the style of the first part."""
    lines: list[Text] = []
    for position, part in enumerate(parts):
        text = part if isinstance(part, Text) else Text(part, "dim" if position else first)
        if lines and lines[-1].cell_len + 3 + text.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], (" · ", "dim"), text)
        else:
            lines.append(text)
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return lines


class Scale(NamedTuple):
    """The range of the chart and the marks on it."""

    low: float
    high: float
    ceiling: float | None
    threshold: float | None  # returns above this need memory
    goal: float | None

    @classmethod
    def of(cls, curve: ReturnCurve, env: EnvSpec) -> "Scale":
        """A range that holds the curve, the known marks and (with marks) zero; never a single value."""
        ceiling, goal = env.memoryless_ceiling, env.mean_return_goal
        marks = [mark for mark in (ceiling, goal) if mark is not None]
        known = [*curve.values, *marks, *([0.0] if marks or not curve.values else [])]
        low, high = min(known), max(known)
        return cls(low, high if high > low else low + max(1.0, abs(low)), ceiling, memory_threshold(env), goal)


def chart(curve: ReturnCurve, scale: Scale, width: int, rows: int) -> list[Text]:
    """The returns so far in block characters, with a line at the memoryless ceiling.

    Lines of text from top to bottom; columns above the memory threshold have a different colour.
    """
    values = _columns(curve, width)
    heights = _eighths(values, scale, rows)
    styles = [ABOVE if scale.threshold is not None and value > scale.threshold else BELOW for value in values]
    styles += [""] * (width - len(values))
    heights += [0] * (width - len(heights))
    ceiling_row = _row_of(scale.ceiling, scale, rows) if scale.ceiling is not None and rows > 1 else None
    lines = []
    for row in range(rows):
        floor = 8 * (rows - 1 - row)
        cells = [(BLOCKS[min(max(height - floor, 0), 8)], style) for height, style in zip(heights, styles, strict=True)]
        if row == ceiling_row:
            cells = [("╌", LINE) if block == " " else (block, style) for block, style in cells]
        lines.append(_text(cells))
    return lines


def labels(scale: Scale, rows: int) -> list[Text]:
    """The labels beside the lines of the chart."""
    marks = {rows - 1: Text(score(scale.low), "dim"), 0: Text(score(scale.high), "dim")}
    if scale.goal is not None:
        marks[_row_of(scale.goal, scale, rows)] = Text(f"{score(scale.goal)} at best", "dim")
    if scale.ceiling is not None:
        marks[_row_of(scale.ceiling, scale, rows)] = Text(f"{score(scale.ceiling)} without memory", LINE)
    return [marks.get(row, Text()) for row in range(rows)]


def _columns(curve: ReturnCurve, width: int) -> list[float]:
    """The curve interpolated at each column; a single point is a single column."""
    if len(curve.steps) < 2:
        return list(curve.values)
    steps = np.linspace(curve.steps[0], curve.steps[-1], width)
    return np.interp(steps, curve.steps, curve.values).tolist()


def _eighths(values: list[float], scale: Scale, rows: int) -> list[int]:
    """Heights in eighths of a line, at least one, so that the lowest value is visible."""
    unit = 8 * rows / (scale.high - scale.low)
    return [max(1, round((value - scale.low) * unit)) for value in values]


def _row_of(value: float, scale: Scale, rows: int) -> int:
    fraction = (value - scale.low) / (scale.high - scale.low)
    return rows - 1 - min(int(fraction * rows), rows - 1)


def _text(cells: list[tuple[str, str]]) -> Text:
    groups = groupby(cells, key=lambda cell: cell[1])
    return Text.assemble(*(("".join(block for block, _ in group), style) for style, group in groups), no_wrap=True)
