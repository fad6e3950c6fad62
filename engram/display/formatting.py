"""Formats numbers, times and sizes for people: short, and about equally wide at any magnitude."""

import math
from collections.abc import Mapping

MISSING = "-"


def number(value: float | None) -> str:
    """Three or four significant digits: `0.831`, `-12.4`, `1,234`, `3.1e-07`."""
    if value is None:
        return MISSING
    size = abs(value)
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    if size < 0.001 or size >= 1e7:
        return f"{value:.1e}"
    if size < 1:
        return f"{value:.4f}" if size < 0.1 else f"{value:.3f}"
    if size < 100:
        return f"{value:.2f}"
    return f"{value:.1f}" if size < 1000 else f"{value:,.0f}"


def score(value: float | None) -> str:
    """A return, with two decimals while it is small, so that its width does not jump."""
    if value is None or not math.isfinite(value):
        return number(value)
    if abs(value) < 100:
        return f"{value:.2f}"
    return f"{value:,.1f}" if abs(value) < 10_000 else f"{value:,.0f}"


def interval(low: float | None, high: float | None) -> str:
    """`0.21 to 0.43`; both bounds are None if there is only one value."""
    return MISSING if low is None else f"{number(low)} to {number(high)}"


def estimate_cells(value: Mapping[str, float | None] | None) -> list[str]:
    """The mean, 95% interval and standard deviation of an estimate, as cells of a table."""
    if value is None:
        return [MISSING] * 3
    return [number(value["mean"]), interval(value["low"], value["high"]), number(value["std"])]


def count(value: float | None) -> str:
    return MISSING if value is None else f"{value:,.0f}"


def plural(value: int, noun: str) -> str:
    return f"{count(value)} {noun}{'' if value == 1 else 's'}"


def percent(fraction: float | None) -> str:
    return MISSING if fraction is None or not math.isfinite(fraction) else f"{100 * fraction:.0f}%"


def megabytes(value: float | None) -> str:
    if value is None:
        return MISSING
    return f"{value:.0f} MB" if value < 10_000 else f"{value / 1024:.1f} GB"


def clock(seconds: float | None) -> str:
    """`0:52`, `12:03`, `1:02:03`, `2d 03:04:05`."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"
