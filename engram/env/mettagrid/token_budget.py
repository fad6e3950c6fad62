"""How many tokens the observations of a mettagrid world need, measured in short random play."""

import re

import numpy as np
from mettagrid.config.mettagrid_config import MettaGridConfig

from engram.env.mettagrid.simulators import SimulatorFactory
from engram.env.spec import EMPTY_LOCATION
from engram.settings import UserError

_AMPLE = 4096  # tokens per observation while counting
_EPISODES = 4
_AGENT_STEPS = 2000  # per episode; takes 0.2 s in all


def max_tokens_seen(config: MettaGridConfig) -> int:
    """The largest number of tokens in one observation, in a few short episodes of random actions."""
    config = config.model_copy(deep=True)
    game = config.game
    game.obs.num_tokens = _AMPLE
    factory = SimulatorFactory(config)
    agents, actions = game.num_agents, len(game.actions.actions())
    observations = np.empty((agents, _AMPLE, 3), np.uint8)
    terminals, truncations = np.zeros((2, agents), np.bool_)
    rewards, (moves, vibes) = np.zeros(agents, np.float32), np.zeros((2, agents), np.int32)
    steps = max(_AGENT_STEPS // agents, 10)
    steps = min(steps, game.max_steps or steps)  # 0: no limit
    random, maximum = np.random.default_rng(0), 0
    for seed in range(_EPISODES):
        simulator = factory.make(seed)
        simulator.set_buffers(observations, terminals, truncations, rewards, moves, vibes)
        for _ in range(steps):
            maximum = max(maximum, int((observations[:, :, 0] != EMPTY_LOCATION).sum(axis=1).max()))
            moves[:] = random.integers(actions, size=agents)
            simulator.step()
    return maximum


def overflow(error: RuntimeError, where: str) -> UserError | None:
    """A readable error if the simulator complains that an observation did not fit; otherwise None."""
    found = re.search(r"token budget exceeded.*budget=(\d+), attempted=(\d+)", str(error))
    if found is None:
        return None
    budget, needed = map(int, found.groups())
    return UserError(f"{where}: an observation needs {needed} tokens, more than {budget}: use {with_margin(needed)}")


def with_margin(tokens: int) -> int:
    """One and a half times as many, rounded up to a multiple of 16."""
    return -(-tokens * 3 // 32) * 16
