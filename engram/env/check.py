"""The environment check: plays a short while, exactly as training does, and reports what is wrong and where."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engram.env.actions import random_action
from engram.env.parts import ACTION_MASK
from engram.env.spec import EnvSpec
from engram.env.vector import VectorEnv
from engram.settings import UserError

ENVS = 2
PLAY_SECONDS = 10.0  # a slow environment is played for fewer steps
LARGE_ROW = 2**20  # bytes of one observation
COMPARED = ("observations", "rewards", "terminals", "truncations", "starts", "alive")


@dataclass
class EnvCheck:
    """The results of a check. `errors` stop a run, `warnings` do not."""

    spec: EnvSpec | None = None
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)


@dataclass
class _Play:
    """The results of a short random play, by step."""

    buffers: list[dict[str, np.ndarray]] = field(default_factory=list)
    actions: list[np.ndarray] = field(default_factory=list)
    ended: int = 0
    truncated: int = 0
    seconds: float = 0.0


def check_environment(settings: Any, steps: int = 200, on_hang: Callable[[str], None] | None = None) -> EnvCheck:
    """Checks spaces, observations, rewards, flags, agents, masks, seeds, and measures the time and size of a step."""
    check = EnvCheck()
    try:
        with VectorEnv(settings, ENVS, seed=0, on_hang=on_hang) as env:
            check.spec = env.spec
            play = _play(env, steps)
    except UserError as error:
        check.errors.append(str(error))
        return check
    _check_strictly(settings, steps, check)
    _check_seeds(settings, play, check)
    _check_play(play, check)
    return check


def _play(env: VectorEnv, steps: int, actions: list[np.ndarray] | None = None) -> _Play:
    """Play with random actions that the masks allow, or with these actions."""
    rng, play, began = np.random.default_rng(0), _Play(), time.monotonic()
    env.reset()
    for step in range(steps if actions is None else len(actions)):
        batch = env.recv()
        buffers = batch.buffers
        play.buffers.append({name: getattr(buffers, name).copy() for name in COMPARED})
        play.ended += int(buffers.terminals.sum())
        play.truncated += int(buffers.truncations.sum())
        play.actions.append(_random_actions(env, buffers, rng) if actions is None else actions[step])
        env.send(batch, play.actions[-1])
        play.seconds = time.monotonic() - began
        if actions is None and play.seconds > PLAY_SECONDS:
            break
    return play


def _random_actions(env: VectorEnv, buffers: Any, rng: np.random.Generator) -> np.ndarray:
    masks = buffers.parts(buffers.observations).get(ACTION_MASK) if env.spec.action_mask else None
    space = env.spec.single_action_space
    return np.stack([random_action(space, None if masks is None else masks[row], rng) for row in range(env.rows)])


def _check_strictly(settings: Any, steps: int, check: EnvCheck) -> None:
    """Whether all observations are in their spaces. A run accepts values out of bounds."""
    if "check" not in type(settings).model_fields:
        return
    try:
        with VectorEnv(settings.model_copy(update={"check": "strict"}), ENVS, seed=0) as env:
            _play(env, steps)
    except UserError as error:
        check.warnings.append(str(error))


def _check_seeds(settings: Any, play: _Play, check: EnvCheck) -> None:
    """Whether equal seeds and actions reproduce the observations, and different seeds change them."""
    with VectorEnv(settings, ENVS, seed=0) as env:
        again = _play(env, len(play.buffers), play.actions)
    for step, (first, second) in enumerate(zip(play.buffers, again.buffers, strict=True)):
        different = [name for name in COMPARED if first[name].tobytes() != second[name].tobytes()]
        if different:
            check.warnings.append(
                f"the same seed and actions gave different {different[0]} at step {step} the second time: draw all "
                "random numbers from self.np_random, and set up everything in reset. Until then no run resumes exactly"
            )
            return
    rows = len(play.buffers[0]["starts"]) // ENVS
    firsts = [
        each["observations"][first : first + rows]
        for each in play.buffers
        for first in range(0, ENVS * rows, rows)
        if each["starts"][first : first + rows].all()
    ]
    if len(firsts) > ENVS and all(np.array_equal(firsts[0], other) for other in firsts):
        check.facts["seeds"] = "every episode begins with the same observation"


def _check_play(play: _Play, check: EnvCheck) -> None:
    assert check.spec is not None
    spec, steps = check.spec, len(play.buffers)
    shape, dtype = spec.row
    size = int(np.prod(shape)) * dtype.itemsize
    if size > LARGE_ROW:
        check.warnings.append(
            f"an observation takes {size / 2**20:.1f} MiB: make it smaller with a wrapper, "
            "e.g. env.wrappers=[{resize: {shape: [84, 84]}}]"
        )
    observations = [each["observations"] for each in play.buffers]
    if steps > 1 and all(np.array_equal(observations[0], each) for each in observations):
        check.warnings.append(f"the observation never changed in {steps} steps of random play")
    if not play.ended + play.truncated:
        check.facts["episodes"] = f"none ended within {steps} steps of random play"
    else:
        check.facts["episodes"] = f"{play.ended} terminated, {play.truncated} truncated, in {steps} steps of {ENVS}"
    rewards = np.stack([each["rewards"] for each in play.buffers])
    check.facts["rewards"] = f"{rewards.min():g} to {rewards.max():g}, mean {rewards.mean():.3g}"
    if spec.packing is not None and spec.action_mask:
        check.facts["masks"] = never_allowed(np.stack([spec.packing.views(each)[ACTION_MASK] for each in observations]))
    check.facts["step"] = f"{1e6 * play.seconds / max(steps * ENVS, 1):,.0f} µs for one environment"
    check.facts["size"] = f"{size:,} bytes for one observation"


def never_allowed(masks: np.ndarray) -> str:
    """The actions that masks [T, R, actions] never allow, in words."""
    never = np.flatnonzero(~masks.any((0, 1)))
    if not len(never):
        return "every action was allowed in some step"
    shown = ", ".join(map(str, never[:8])) + (", …" if len(never) > 8 else "")
    return f"{len(never)} of {masks.shape[-1]} actions were never allowed (entry {shown} of the mask)"
