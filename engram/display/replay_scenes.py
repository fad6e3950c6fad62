"""Scenes of a recording as arrays for the replay page: objects on a grid, compressed pictures, or observations."""

# T steps, R rows (agents), D numbers of an observation

import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from engram.env.scene import GridScene

if TYPE_CHECKING:
    from engram.analysis.recording import Recording

LONGEST_SIDE = 400  # pixels of a picture
PICTURE_BYTES = 6_000_000  # of all pictures; larger ones are halved until they fit
OBSERVATION_BYTES = 2_000_000


class PageScenes(NamedTuple):
    """The scenes of an episode, as the page draws them."""

    facts: dict[str, Any]
    arrays: Mapping[str, np.ndarray]
    notes: list[str]  # for the reader


def page_scenes(recording: "Recording") -> PageScenes:
    scenes = recording.scenes
    if not scenes:
        return _observations(recording)
    grids = [scene for scene in scenes if isinstance(scene, GridScene)]
    return _grid(grids) if grids else _pictures([scene for scene in scenes if isinstance(scene, np.ndarray)])


def _grid(scenes: Sequence[GridScene]) -> PageScenes:
    kinds: dict[str, int] = {}
    inventories: dict[tuple[tuple[str, int], ...], int] = {(): 0}
    rows, offsets = [], [0]
    for scene in scenes:
        for thing in scene.objects:
            kind = kinds.setdefault(thing.kind, len(kinds))
            items = tuple(sorted((name, count) for name, count in thing.inventory.items() if count))
            inventory = inventories.setdefault(items, len(inventories))
            rows.append((kind, thing.row, thing.column, -1 if thing.agent is None else thing.agent, inventory))
        offsets.append(len(rows))
    facts = {
        "form": "grid",
        "height": max(scene.height for scene in scenes),
        "width": max(scene.width for scene in scenes),
        "kinds": list(kinds),
        "inventories": [dict(items) for items in inventories],
    }
    return PageScenes(facts, {"objects": np.array(rows, np.int32), "objectOffsets": np.array(offsets, np.int32)}, [])


def _pictures(frames: Sequence[np.ndarray]) -> PageScenes:
    divisor = max(1, -(-max(max(frame.shape[:2]) for frame in frames) // LONGEST_SIDE))
    notes = []
    while True:
        encoded = [png(shrink(frame, divisor)) for frame in frames]
        if sum(map(len, encoded)) <= PICTURE_BYTES or divisor >= 64:
            break
        divisor *= 2
        notes = [f"Pictures are shown at 1/{divisor} of their size, to keep this page small."]
    offsets = np.cumsum([0, *map(len, encoded)])
    arrays: dict[str, np.ndarray] = {
        "pictures": np.frombuffer(b"".join(encoded), np.uint8),
        "pictureOffsets": offsets.astype(np.int32),
    }
    return PageScenes({"form": "pictures"}, arrays, notes)


def _observations(recording: "Recording") -> PageScenes:
    steps, rows = recording.observations.shape[:2]
    flat_TRD, shapes = observation_numbers(recording)
    shown = max(1, min(flat_TRD.shape[2], OBSERVATION_BYTES // (steps * rows)))
    notes = []
    if shown < flat_TRD.shape[2]:
        notes = [f"The first {shown} of {flat_TRD.shape[2]} numbers of an observation are shown."]
        flat_TRD, shapes = flat_TRD[:, :, :shown], {"": (shown,)}
    low_D, high_D = flat_TRD.min((0, 1)), flat_TRD.max((0, 1))
    scaled = (flat_TRD - low_D) / np.where(high_D > low_D, high_D - low_D, 1)
    parts = [{"name": name, "shape": shape} for name, shape in shapes.items()]
    facts = {"form": "observations", "parts": parts, "low": low_D.tolist(), "high": high_D.tolist()}
    return PageScenes(facts, {"observations": np.rint(scaled * 255).astype(np.uint8)}, notes)


def observation_numbers(recording: "Recording") -> tuple[np.ndarray, dict[str, tuple[int, ...]]]:
    """The observations as numbers [T, R, D], and the shapes of their parts by name; one without parts has no name."""
    observations, packing = recording.observations, recording.spec.packing
    steps, rows = observations.shape[:2]
    together = np.ascontiguousarray(observations.reshape(steps * rows, *observations.shape[2:]))
    parts = {"": together} if packing is None else packing.views(together)
    flat = [part.reshape(steps, rows, -1).astype(np.float32) for part in parts.values()]
    return np.concatenate(flat, axis=2), {name: part.shape[1:] for name, part in parts.items()}


def shrink(picture: np.ndarray, divisor: int) -> np.ndarray:
    """Averages squares of `divisor` pixels."""
    if divisor == 1:
        return picture
    height, width = (size // divisor * divisor for size in picture.shape[:2])
    blocks = picture[:height, :width].reshape(height // divisor, divisor, width // divisor, divisor, 3)
    return blocks.mean((1, 3)).astype(np.uint8)


def png(picture: np.ndarray) -> bytes:
    """A picture, uint8 [height, width, 3], as a PNG file."""
    height, width, _ = picture.shape
    lines = np.zeros((height, 1 + 3 * width), np.uint8)  # a line begins with its filter: 0 is none
    lines[:, 1:] = picture.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )
