"""The replay page: a recorded episode with the agent's actions, its memory, and which earlier steps matter."""

# T steps, R rows (agents), W numbers per action distribution, U units, G groups of steps

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium import spaces

from engram.display.page import page
from engram.display.replay_scenes import page_scenes
from engram.env.spec import EnvSpec

if TYPE_CHECKING:
    from engram.analysis.influence import Influence
    from engram.analysis.recording import Recording

MOST_UNITS = 128
MEMORY_BYTES = 4_000_000


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
        "alone": _shares(influence.alone),
        "erased": _shares(influence.erased),
        **shown.arrays,
    }
    return page("replay.html", content, arrays)


def _shown_units(recording: "Recording") -> np.ndarray:
    steps, rows, units = recording.memory.shape
    count = int(np.clip(MEMORY_BYTES // (steps * rows), 8, MOST_UNITS))
    return unit_order(recording.memory.reshape(-1, units), count)


def _memory(recording: "Recording", units: np.ndarray) -> np.ndarray:
    """Memory [R, U, T] as int8, each unit relative to its largest absolute value."""
    bounded = np.tanh(recording.memory[:, :, units])
    largest = np.abs(bounded).max((0, 1))
    return np.rint(bounded / np.maximum(largest, 1e-6) * 127).astype(np.int8).transpose(1, 2, 0)


def _shares(changes_TRG: np.ndarray) -> np.ndarray:
    """Changes from 0 to 1 as uint8 [R, T, G]."""
    return np.rint(changes_TRG * 255).astype(np.uint8).transpose(1, 0, 2)


def _actions(spec: EnvSpec) -> dict[str, Any]:
    """How the page shows actions: names of the logits, or dimensions of continuous actions."""
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
    """What the page leaves out or sums up."""
    notes = []
    if influence.group > 1:
        notes.append(
            f"Earlier steps are taken out in groups of {influence.group}, since one by one would take too long."
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
