"""Random play of one Gymnasium environment, to inspect what it returns before it is used."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from engram.env.action_reader import policy_action_space, reader
from engram.env.row_writer import flat_mask, mask_of


class Shown(NamedTuple):
    """What an environment returned: by `reset` at step 0 of an episode, else by `step`."""

    seed: int
    step: int
    observation: Any
    reward: Any
    terminated: Any
    truncated: Any
    info: Any


def random_play(env: gymnasium.Env, steps: int, seed: int = 0, masks: bool = True) -> Iterator[Shown]:
    """Plays whole episodes with seeds from `seed` on, for `steps` observations. Respects action masks."""
    draw = np.random.default_rng(seed)
    actions, read = policy_action_space(env.action_space, "random play"), reader(env.action_space)
    episode, step, ended = seed, 0, True
    for _ in range(steps):
        if ended:
            observation, info = env.reset(seed=episode)
            episode, step, ended = episode + 1, 0, False
            yield (shown := Shown(episode - 1, 0, observation, 0.0, False, False, info))
        else:
            mask = mask_of(shown.observation, shown.info) if masks else None
            action = read(random_action(actions, mask, draw)[None])[0]
            step += 1
            yield (shown := Shown(episode - 1, step, *env.step(action)))
            ended = bool(shown.terminated or shown.truncated)


def random_action(space: gymnasium.Space, mask: Any, draw: np.random.Generator) -> np.ndarray:
    """An action of a policy's action space, sampled from those that the mask allows."""
    if isinstance(space, gymnasium.spaces.Box):
        low, high = (np.clip(bound, -10, 10) for bound in (space.low, space.high))
        return draw.uniform(low, high).astype(np.float32)
    sizes = [int(space.n)] if isinstance(space, gymnasium.spaces.Discrete) else [int(n) for n in space.nvec]
    allowed = np.ones(sum(sizes), bool) if mask is None else flat_mask(mask)
    if len(allowed) != sum(sizes):
        allowed = np.ones(sum(sizes), bool)
    choices = [np.flatnonzero(part) for part in np.split(allowed, np.cumsum(sizes)[:-1])]
    drawn = [int(draw.choice(choice)) if len(choice) else 0 for choice in choices]
    return np.array(drawn[0] if isinstance(space, gymnasium.spaces.Discrete) else drawn, np.int32)
