"""The panel: everything about a run that trains, drawn for the size that the terminal has at this moment."""

from collections.abc import Iterable
from math import ceil, isfinite

from rich import box
from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from engram.display.ceiling import beyond_luck
from engram.display.chart import Scale, chart, labels
from engram.display.figures import MISSING, clock, count, megabytes, number, percent, plural, score
from engram.display.story import Plan, Story

WIDEST = 120
CHART_ROWS = 5
REPLAY_BOUND = 1e-5  # rounding in float32; with more than that, learning saw another memory than acting
PHASE_STYLES = {"environment": "blue", "inference": "magenta", "learning": "cyan", "other": "bright_black"}
FIGURES = {  # label -> key of the record, in reading order; where there is no room for all, the last ones go
    "episode length": "episode/length",
    "policy loss": "loss/policy",
    "value loss": "loss/value",
    "entropy": "loss/entropy",
    "KL": "loss/kl",
    "clip fraction": "loss/clip_fraction",
    "explained variance": "value/explained_variance",
    "gradient norm": "gradient/norm",
    "replay error": "memory/replay_error",
    "recurrent gradient": "gradient/norm_recurrent",
    "memory norm": "memory/norm",
    "process memory": "process/megabytes",
}
FIGURE_WIDTH = 24
GAP = 2  # columns between two figures
FORMATS = {"loss/clip_fraction": percent, "value/explained_variance": score, "process/megabytes": megabytes}


def run_panel(story: Story, width: int, height: int) -> Panel:
    """The story as it stands, for a terminal of this size."""
    width = min(width, WIDEST)
    inner = max(width - 4, 1)
    header, progress, speed = _header(story.plan, inner), _progress(story, inner), _speed(story, inner)
    reached = _return(story, inner)
    frame_and_blanks = 7  # with the one below the panel, where the cursor is
    room = height - frame_and_blanks - sum(map(len, (header, progress, speed, reached)))
    columns = min(max((inner + GAP) // (FIGURE_WIDTH + GAP), 1), 4)
    figure_rows = max(min(ceil(len(FIGURES) / columns), room - 1), 0)
    chart_rows = min(max(room - figure_rows, 1), CHART_ROWS)
    blank = Text()
    body = Group(
        *header,
        blank,
        *progress,
        blank,
        *speed,
        blank,
        *reached,
        *_chart(story, inner, chart_rows),
        blank,
        *_figures(story, inner, columns, figure_rows),
    )
    return Panel(body, title=_title(story), title_align="left", box=box.ROUNDED, border_style="dim", width=width)


def _title(story: Story) -> Text:
    endings = {"done": (" done", "green not dim"), "stopped": (" stopped", "yellow not dim"), None: ("", "")}
    return Text.assemble("engram ", (story.plan.run, "bold not dim"), endings[story.ending])


def _header(plan: Plan, width: int) -> list[Text]:
    sizes, agents = plan.sizes, plan.env.agents
    envs = plural(sizes.num_envs, "environment") + (f" of {agents} agents" if agents > 1 else "")
    segments = f"{plural(sizes.segments, 'segment')} of {plural(sizes.horizon, 'step')}"
    what = [f"{plan.policy} on {plan.env.name}", f"{count(plan.parameters)} parameters", plan.device]
    how = [envs, plural(sizes.num_workers, "worker"), segments, f"minibatch {count(sizes.minibatch_size)}"]
    return [*_flow(what, width, "bold"), *_flow(how, width)]


def _progress(story: Story, width: int) -> list[Text]:
    done = f"{int(100 * story.share_done)}%"
    parts = [f"{count(story.steps)} of {count(story.plan.total_timesteps)} steps"]
    if story.record:
        parts.append(f"epoch {count(story.epoch)}")
    elif not story.ending:
        parts.append("the first epoch is under way")
    parts.append(f"took {clock(story.seconds)}" if story.ending else f"{clock(story.seconds)} gone")
    if story.seconds_left is not None:
        parts.append(f"{clock(story.seconds_left)} left")
    style = "green" if story.ending == "done" else "cyan"
    return [_bar([(style, story.share_done)], width, f"{done:>6}"), *_flow(parts, width, "")]


def _speed(story: Story, width: int) -> list[Text]:
    shares = story.shares
    shown = [phase for phase in PHASE_STYLES if phase != "other" or shares.get(phase, 0.0) >= 0.05]
    legend = [Text(f"{phase} {percent(shares.get(phase))}", PHASE_STYLES[phase]) for phase in shown]
    parts = [(PHASE_STYLES[phase], share) for phase, share in shares.items() if phase != "other"]
    return [_bar(parts, width, f"  {count(story.steps_per_second)} steps/s"), *_flow(legend, width)]


def _return(story: Story, width: int) -> list[Text]:
    value, ceiling, clear = story.value("return"), story.plan.env.memoryless_ceiling, beyond_luck(story.plan.env)
    parts = [Text.assemble("return ", (score(value), "bold"))]
    if value is None:
        parts = [Text("no episode has ended yet", "dim")]
    if ceiling is not None:
        above = value is not None and clear is not None and value > clear
        parts.append(Text(f"without memory at most {score(ceiling)}", "green" if above else "yellow"))
    return _flow(parts, width)


def _chart(story: Story, width: int, rows: int) -> Iterable[Text]:
    scale = Scale.of(story.curve, story.plan.env)
    beside = labels(scale, rows)
    room = max(label.cell_len for label in beside) + 1
    if rows == 1 or width < 3 * room:
        return chart(story.curve, scale, width, rows)
    columns = chart(story.curve, scale, width - room, rows)
    return [line.append(" ").append_text(label) for line, label in zip(columns, beside, strict=True)]


def _figures(story: Story, width: int, columns: int, rows: int) -> list[Text]:
    """Figures in columns that fill the width, read downwards."""
    ends = [round((column + 1) * (width + GAP) / columns) for column in range(columns)]
    widths = [end - start - GAP for start, end in zip([0, *ends], ends, strict=False)]
    lines = [Text(no_wrap=True) for _ in range(rows)]
    for position, (label, name) in enumerate([*FIGURES.items()][: rows * columns]):
        column, row = divmod(position, rows)
        lines[row].append(" " * GAP if column else "").append_text(_figure(story, label, name, widths[column]))
    return lines


def _figure(story: Story, label: str, name: str, width: int) -> Text:
    value = story.value(name)
    if value is None:
        shown = Text(MISSING, "dim")
    elif not isfinite(value):
        shown = Text(str(value), "bold red")
    elif name == "memory/replay_error":
        shown = Text.assemble(f"{number(value)} ", ("✓", "green") if value < REPLAY_BOUND else ("✗", "bold red"))
    else:
        shown = Text(FORMATS.get(name, number)(value))
    room = max(width - shown.cell_len - 1, 0)
    return Text.assemble((f"{label[:room]:<{room}} ", "dim"), shown)


def _bar(parts: list[tuple[str, float]], width: int, label: str) -> Text:
    """A line whose coloured parts, (style, share), are thicker than the rest of it, and a label after it."""
    length = max(width - len(label), 1)
    text, start, end = Text(no_wrap=True), 0, 0.0
    for style, share in parts:
        end += share * length
        text.append("━" * (round(end) - start), style)
        start = round(end)
    return text.append("─" * (length - start), "bright_black").append(label, "bold")


def _flow(parts: Iterable[str | Text], width: int, first: str = "dim") -> list[Text]:
    """Parts with dots between them, on as many lines as they need; `first` is the style of the first one."""
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
