"""A parallel environment whose agents join and leave by a timetable: agent name to (join, leave, join, leave, …)."""

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

Timetable = dict[str, tuple[int, ...]]


class Skirmish(ParallelEnv):
    """Shows (agent's number + the episode's secret, step). The reward is the action, minus 1."""

    metadata = {"name": "skirmish", "render_modes": []}

    def __init__(self, table: Timetable | None = None, ends="terminated", silent=False, wide=None, bad=None):
        self.table = table or {"a": (0, 3), "b": (0, 3)}
        self.possible_agents = list(self.table)
        self.ends, self.silent, self.wide, self.bad = ends, silent, wide, bad

    def observation_space(self, agent):
        return spaces.Box(-9, 9, (3 if agent == self.wide else 2,))

    def action_space(self, agent):
        return spaces.Discrete(3, start=1)

    def reset(self, seed=None, options=None):
        self.time, self.secret = 0, float(np.random.default_rng(seed).random())
        self.agents = self._present()
        return {agent: self._see(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        self.time += 1
        before, self.agents = self.agents, self._present()
        gone = [agent for agent in before if agent not in self.agents]
        rewards = {agent: float(action - 1) for agent, action in actions.items()}
        if self.silent and gone:
            rewards = {agent: reward for agent, reward in rewards.items() if agent not in gone}
            stay = dict.fromkeys(self.agents, False)
            truncations = stay | dict.fromkeys(gone, True)
            return {agent: self._see(agent) for agent in self.agents}, rewards, stay, truncations, {}
        known = dict.fromkeys([*before, *self.agents])
        flags = {agent: agent in gone for agent in known}
        never = dict.fromkeys(known, False)
        ends = {"terminated": (flags, never), "truncated": (never, flags), "both": (flags, flags)}[self.ends]
        infos = {agent: {"score": self.time} for agent in known}
        return {agent: self._see(agent) for agent in known}, rewards, *ends, infos

    def _present(self):
        return [agent for agent, times in self.table.items() if sum(time <= self.time for time in times) % 2]

    def _see(self, agent):
        step = np.nan if self.bad == (agent, self.time) else self.time
        return np.array([self.possible_agents.index(agent) + self.secret, step], np.float32)


def parallel_env(**kwargs):
    return Skirmish(**kwargs)


def turn_based_env(**kwargs):
    return object()
