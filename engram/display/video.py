"""Replays as GIF or MP4, one frame per step: the world, the action probabilities, and which earlier steps matter."""

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from engram.env.block import GridObject, GridScene, Scene
from engram.settings import UserError

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

    from engram.analysis.influence import Influence
    from engram.analysis.recording import Recording

FRAMES_PER_SECOND = 5
WORLD_SIZE = 384  # pixels of the longest side
PANEL_WIDTH = 272  # pixels, right of the world
MIN_HEIGHT = 256
MAX_ACTIONS = 8
INK, SOFT, PAPER, PANEL_COLOUR = (27, 36, 48), (90, 104, 120), (255, 255, 255), (238, 242, 246)
ACCENT, WARM = (47, 102, 181), (194, 87, 27)
COLOURS = {
    "agent": ACCENT,
    "wall": (123, 135, 148),
    "goal": (29, 138, 95),
    "altar": (142, 79, 184),
    "mine": (138, 106, 59),
    "generator": (185, 137, 0),
    "cue_1": (184, 50, 122),
    "cue_2": (15, 127, 147),
}
OTHER_COLOURS = ((176, 65, 62), (77, 124, 43), (91, 95, 199), (168, 72, 127), (43, 122, 120), (150, 98, 26))


def check_installed() -> None:
    try:
        import imageio_ffmpeg  # noqa: F401
        import PIL  # noqa: F401
        from imageio import v3  # noqa: F401
    except ImportError as error:
        raise UserError(
            f'--video: {error.name} is not installed: pip install "engram-rl[video]", or leave the video out'
        ) from error


def write_video(path: Path, recording: "Recording", influence: "Influence") -> None:
    from imageio import v3

    path.parent.mkdir(parents=True, exist_ok=True)
    shown = np.stack([*frames(recording, influence)])
    if path.suffix.lower() == ".gif":
        v3.imwrite(path, shown, plugin="pillow", duration=1000 / FRAMES_PER_SECOND, loop=0)
    else:
        v3.imwrite(path, shown, plugin="FFMPEG", fps=FRAMES_PER_SECOND, macro_block_size=2)


def frames(recording: "Recording", influence: "Influence") -> Iterator[np.ndarray]:
    """A picture of each step, with the numbers of agent 0. Height and width are even, as codecs require."""
    from PIL import Image, ImageDraw

    size = _world_size(recording.scenes[0] if recording.scenes else None)
    height = max(MIN_HEIGHT, size[1])
    for step in range(recording.steps):
        frame = Image.new("RGB", ((size[0] + PANEL_WIDTH) // 2 * 2, height // 2 * 2), PAPER)
        draw = ImageDraw.Draw(frame)
        if recording.scenes:
            frame.paste(_world(recording.scenes[step], size), (0, (height - size[1]) // 2))
        _draw_numbers(draw, size[0] + 12, recording, step)
        _draw_influence(draw, (size[0] + 12, height - 74), recording, influence, step)
        yield np.asarray(frame)


def _world_size(scene: Scene | None) -> tuple[int, int]:
    if scene is None:
        return 0, 0
    height, width = (scene.height, scene.width) if isinstance(scene, GridScene) else scene.shape[:2]
    scale = WORLD_SIZE / max(height, width)
    if isinstance(scene, GridScene):
        scale = max(4, int(scale))  # whole pixels per cell
    return int(width * scale) // 2 * 2, int(height * scale) // 2 * 2


def _world(scene: Scene, size: tuple[int, int]) -> Any:
    from PIL import Image, ImageDraw

    if not isinstance(scene, GridScene):
        return Image.fromarray(scene).resize(size)
    picture = Image.new("RGB", size, PANEL_COLOUR)
    draw = ImageDraw.Draw(picture)
    cell = size[0] / scene.width
    other_kinds = [*dict.fromkeys(thing.kind for thing in scene.objects if thing.kind not in COLOURS)]
    colours = COLOURS | dict(zip(other_kinds, cycle(OTHER_COLOURS), strict=False))
    for thing in scene.objects:
        x, y = thing.column * cell, thing.row * cell
        gap = 0.5 if thing.kind == "wall" else cell * 0.1
        box = (x + gap, y + gap, x + cell - gap, y + cell - gap)
        draw_shape = draw.rectangle if thing.agent is None else draw.ellipse
        draw_shape(box, fill=colours[thing.kind])
        if thing.kind != "wall" and cell >= 14:
            centre = (x + cell / 2, y + cell / 2)
            draw.text(centre, _label(thing), fill=PAPER, anchor="mm", font=_font(int(cell * 0.42)))
    return picture


def _label(thing: GridObject) -> str:
    """The number of an agent, or the initials of an object: `c1` for `cue_1`."""
    if thing.agent is not None:
        return str(thing.agent)
    *_, last = thing.kind.split("_")
    return thing.kind[0] + last[:1] if "_" in thing.kind else thing.kind[0]


def _draw_numbers(draw: "ImageDraw", left: int, recording: "Recording", step: int) -> None:
    """The action probabilities of agent 0, and its value and reward."""
    small, plain = _font(11), _font(13)
    draw.text((left, 8), f"step {step}", fill=INK, font=plain)
    row = recording.distributions[step, 0]
    top = 30
    if isinstance(recording.spec.single_action_space, spaces.Discrete):
        names = recording.spec.action_names or tuple(f"action {index}" for index in range(len(row)))
        for index in sorted(np.argsort(-row)[:MAX_ACTIONS]):
            taken = recording.actions[step, 0] == index
            draw.text((left, top), names[index][:16], fill=INK if taken else SOFT, font=small)
            draw.rectangle(
                (left + 100, top + 2, left + 100 + 110 * row[index], top + 11), fill=ACCENT if taken else SOFT
            )
            draw.text((left + 216, top), f"{100 * row[index]:.0f}%", fill=SOFT, font=small)
            top += 16
    text = f"value {recording.values[step, 0]:.2f}   reward {recording.rewards[step, 0]:.2f}"
    draw.text((left, top + 6), text, fill=INK, font=small)


def _draw_influence(
    draw: "ImageDraw", corner: tuple[int, int], recording: "Recording", influence: "Influence", step: int
) -> None:
    """One bar per group of earlier steps: the change of the action without any step up to that group."""
    left, top = corner
    width, height = PANEL_WIDTH - 24, 48
    draw.text((left, top), "change if all is erased up to…", fill=SOFT, font=_font(11))
    top += 16
    draw.rectangle((left, top, left + width, top + height), fill=PANEL_COLOUR)
    first = int(np.flatnonzero(recording.starts[: step + 1, 0])[-1])
    later_starts = np.flatnonzero(recording.starts[step + 1 :, 0])
    length = (step + 1 + int(later_starts[0]) if len(later_starts) else recording.steps) - first
    bar_width = width * influence.group / length
    for group in range((step - first) // influence.group):
        change = influence.erased[step, 0, group]
        x = left + group * bar_width
        draw.rectangle((x, top + height * (1 - change), x + max(1, bar_width - 1), top + height), fill=WARM)
    cursor = left + width * (step - first + 0.5) / length
    draw.line((cursor, top, cursor, top + height), fill=INK, width=2)


def _font(size: int) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(size=max(8, size))
