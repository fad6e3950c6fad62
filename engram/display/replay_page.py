"""The replay page: a recorded episode with the agent's actions, its memory, and which earlier steps matter."""

# T steps, R rows (agents), U units, G groups of steps, D numbers of an observation

import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium import spaces

from engram.display.page import page
from engram.env.block import GridScene
from engram.env.spec import EnvSpec

if TYPE_CHECKING:
    from engram.analysis.influence import Influence
    from engram.analysis.recording import Recording


LONGEST_SIDE = 400  # pixels of a picture
MAX_PICTURE_BYTES = 6_000_000  # of all pictures together; their size is halved until they fit
MAX_OBSERVATION_BYTES = 2_000_000
MAX_MEMORY_BYTES = 4_000_000
MAX_UNITS = 128


class RunFacts(NamedTuple):
    """Which agent was recorded."""

    run: str
    policy: str
    epoch: int
    steps: int  # of training
    memory: bool  # false: cleared at every step


def replay_page(facts: RunFacts, recording: "Recording", influence: "Influence", unit_names: Sequence[str]) -> str:
    shown = page_scenes(recording)
    units = _shown_units(recording)
    starts = recording.episode_starts
    content = {
        **facts._asdict(),
        "env": recording.spec.name,
        "greedy": recording.greedy,
        "seed": recording.seed,
        "count": recording.steps,
        "agents": recording.starts.shape[1],
        "agentNames": [*recording.spec.agent_names] or [f"agent {row}" for row in range(recording.starts.shape[1])],
        "window": list(recording.spec.window),
        "episodeStarts": starts.tolist(),
        "complete": recording.complete,
        "group": influence.group,
        "units": [unit_names[unit] for unit in units],
        "allUnits": len(unit_names),
        "world": shown.facts,
        "notes": [*shown.notes, *_notes(recording, influence)],
        **_actions(recording.spec),
    }
    arrays = {
        "distributions": recording.distributions.astype(np.float32),
        "taken": _taken(recording),
        "values": recording.values.astype(np.float32),
        "entropies": recording.entropies.astype(np.float32),
        "rewards": recording.rewards.astype(np.float32),
        "alive": recording.alive.astype(np.uint8),
        "starts": recording.starts.astype(np.uint8),
        "memory": _memory(recording, units),
        "skipped": _as_bytes(influence.skipped),
        "erased": _as_bytes(influence.erased),
        **shown.arrays,
    }
    return page("replay.html", content, arrays)


def _shown_units(recording: "Recording") -> np.ndarray:
    steps, rows, units = recording.memory.shape
    count = int(np.clip(MAX_MEMORY_BYTES // (steps * rows), 8, MAX_UNITS))
    return unit_order(recording.memory.reshape(-1, units), count)


def _memory(recording: "Recording", units: np.ndarray) -> np.ndarray:
    """Memory [R, U, T] as int8: the tanh of each unit, relative to its largest absolute value."""
    bounded = np.tanh(recording.memory[:, :, units])
    largest = np.abs(bounded).max((0, 1))
    return np.rint(bounded / np.maximum(largest, 1e-6) * 127).astype(np.int8).transpose(1, 2, 0)


def _as_bytes(changes_TRG: np.ndarray) -> np.ndarray:
    """Changes from 0 to 1 as uint8 [R, T, G]."""
    return np.rint(changes_TRG * 255).astype(np.uint8).transpose(1, 0, 2)


def _actions(spec: EnvSpec) -> dict[str, Any]:
    """The names of actions on the page: of the logits, or of the dimensions of continuous actions."""
    space = spec.single_action_space
    if isinstance(space, spaces.Box):
        return {"actions": "continuous", "names": [f"[{index}]" for index in range(int(np.prod(space.shape)))]}
    if isinstance(space, spaces.MultiDiscrete) and spec.action_max_params is None:
        return {
            "actions": "discrete",
            "names": [f"{i}: {value}" for i, n in enumerate(space.nvec) for value in range(n)],
        }
    if isinstance(space, spaces.MultiDiscrete):
        kinds = spec.action_names or tuple(f"type {kind}" for kind in range(len(spec.action_max_params or ())))
        pairs = zip(kinds, spec.action_max_params or (), strict=True)
        return {"actions": "discrete", "names": [f"{kind} {value}" for kind, top in pairs for value in range(top + 1)]}
    return {"actions": "discrete", "names": [*spec.action_names] or [f"action {index}" for index in range(space.n)]}


def _taken(recording: "Recording") -> np.ndarray:
    """The actions that were taken [T, R, D]: indices of logits, or the numbers of continuous actions."""
    space, max_params = recording.spec.single_action_space, recording.spec.action_max_params
    actions = recording.actions.reshape(*recording.actions.shape[:2], -1)
    if isinstance(space, spaces.Box):
        return actions.astype(np.float32)
    if isinstance(space, spaces.MultiDiscrete) and max_params is not None:
        first = np.cumsum([0, *(top + 1 for top in max_params[:-1])])
        return (first[actions[..., :1]] + actions[..., 1:]).astype(np.int32)
    if isinstance(space, spaces.MultiDiscrete):
        return (actions + np.cumsum([0, *space.nvec[:-1]])).astype(np.int32)
    return actions.astype(np.int32)


def _notes(recording: "Recording", influence: "Influence") -> list[str]:
    """Notes about what the page leaves out or summarises."""
    notes = []
    if influence.group > 1:
        notes.append(
            f"Earlier steps are skipped in groups of {influence.group}, since single steps would take too long."
        )
    if not recording.complete:
        notes.append(f"The recording stops after {recording.steps} steps, before the last episode ends.")
    return notes


def unit_order(memory_NU: np.ndarray, count: int) -> np.ndarray:
    """The indices of the `count` units that vary most, ordered by similarity.

    Units are points in the plane of the first two principal components; those that rise and fall together have the
    same direction. They are ordered by that angle, beginning at the widest gap.
    """
    bounded = np.tanh(memory_NU)  # cells of an LSTM have no bound; a few large ones must not hide the others
    centred = bounded - bounded.mean(0)
    spread = centred.std(0)
    chosen = np.sort(np.argsort(-spread, kind="stable")[:count])
    scaled = centred[:, chosen] / np.maximum(spread[chosen], 1e-8)
    if len(scaled) < 2 or len(chosen) < 3:
        return chosen
    *_, directions = np.linalg.svd(scaled, full_matrices=False)
    angles = np.arctan2(directions[1], directions[0])
    order = np.argsort(angles, kind="stable")
    gaps = np.diff(angles[order], append=angles[order[0]] + 2 * np.pi)
    return chosen[np.roll(order, -int(np.argmax(gaps)) - 1)]


class PageScenes(NamedTuple):
    """The scenes of an episode as data for the page."""

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
        if sum(map(len, encoded)) <= MAX_PICTURE_BYTES or divisor >= 64:
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
    shown = max(1, min(flat_TRD.shape[2], MAX_OBSERVATION_BYTES // (steps * rows)))
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
    """The observations as numbers [T, R, D], and the shapes of their parts by name, or by "" without parts."""
    observations, packing = recording.observations, recording.spec.packing
    steps, rows = observations.shape[:2]
    together = np.ascontiguousarray(observations.reshape(steps * rows, *observations.shape[2:]))
    parts = {"": together} if packing is None else packing.views(together)
    flat = [part.reshape(steps, rows, -1).astype(np.float32) for part in parts.values()]
    return np.concatenate(flat, axis=2), {name: part.shape[1:] for name, part in parts.items()}


def shrink(picture: np.ndarray, divisor: int) -> np.ndarray:
    """The picture at 1/`divisor` of its size: each pixel is the mean of a square of pixels."""
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
