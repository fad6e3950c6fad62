"""Agent: a trained policy to act with. `engram.load` loads one from a run."""

# B rows, L layers, S floats per layer

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from tensordict import TensorDict

from engram.agent.actions import MEAN_NOISE
from engram.agent.metta_agent import MettaAgent
from engram.api.arguments import Env, PolicyChoice, env_choice, policy_choice
from engram.api.make_env import RowSpaces, row_spaces
from engram.api.observations import ObservationRows
from engram.api.run import Run, checked_path, directory_of
from engram.config.evaluation import with_env
from engram.config.load import load_run
from engram.config.overrides import from_python
from engram.config.run import RunSettings
from engram.env.actions import action_converter
from engram.env.registry import make_spec
from engram.nearest import suggestion
from engram.settings import UserError
from engram.training.checkpoint.loading import checkpoint_of, load_agent
from engram.training.device import choose_device
from engram.training.evaluate import copy_with_own_memory

DEVICES = get_args(RunSettings.model_fields["device"].annotation)
State = tuple[np.ndarray, ...]  # memory [B, L, S] of each recurrent part, and the previous actions


class Agent:
    """A trained policy. It takes observations as the environment gives them and returns actions for `env.step`.

    >>> import engram
    >>> agent = engram.load("runs/first")
    >>> env = engram.make_env("recall")
    >>> observation, _ = env.reset(seed=1)
    >>> agent.reset()
    >>> for _ in range(5):
    ...     observation, reward, terminated, truncated, _ = env.step(agent.act(observation))
    """

    def __init__(self, agent: MettaAgent, spaces: RowSpaces, settings: RunSettings, seed: int | None) -> None:
        self.settings = settings
        self.observation_space, self.action_space = spaces.observation, spaces.action
        self.policy = agent  # a MettaAgent: the network is its `policy`
        self._predicting = copy_with_own_memory(agent)  # a second memory: `predict` must not disturb `act`
        self._observations = ObservationRows(spaces, agent.env_spec)
        self._convert_actions = action_converter(spaces.action)
        self._device = next(agent.parameters()).device
        self._generator = torch.Generator(self._device)
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(int(seed))
        self._rows: int | None = None
        self._previous_actions: np.ndarray | None = None  # in the policy's form

    def reset(self) -> None:
        """Forget everything: the next observations are the first of their episodes."""
        self.policy.reset_memory()
        self._rows, self._previous_actions = None, None

    def act(
        self,
        observations: Any,
        starts: Any = None,
        deterministic: bool = False,
        *,
        rewards: Any = None,
        action_masks: Any = None,
    ) -> Any:
        """Actions for one observation, or for a batch with one memory per row.

        `starts` is true where an observation is the first of an episode: the memory of that row is cleared first. After
        `reset` all rows are at the start of an episode. `deterministic` takes the most likely action. `action_masks`
        are needed if the environment gives them in its infos. `rewards` are the environment's rewards for the previous
        actions, for policies with `py_agent.previous=[reward]`.
        """
        rows, single = self._observations.convert(observations, action_masks)
        if self._rows not in (None, len(rows)):
            raise UserError(
                f"act: got {len(rows)} rows, expected {self._rows} as before: call agent.reset() to change their number"
            )
        self._rows = len(rows)
        flags = _flags(starts, len(rows), "starts")
        actions = self._act(self.policy, rows, flags, deterministic, self._previous_actions, rewards)
        self._previous_actions = actions
        return self._converted(actions, single)

    def predict(
        self,
        observation: Any,
        state: State | None = None,
        episode_start: Any = None,
        deterministic: bool = False,
        *,
        action_masks: Any = None,
    ) -> tuple[Any, State]:
        """Action and next state for one observation or a batch, as in stable-baselines3: the caller keeps the state.

        `state` is None before the first step. `episode_start` is true where an observation begins an episode.
        """
        rows, single = self._observations.convert(observation, action_masks)
        starts = _flags(episode_start, len(rows), "episode_start")
        stores = self._predicting.policy.stores()
        self._predicting.reset_memory()
        previous_actions = None
        if state is not None:
            *memories, previous_actions = self._checked_state(state, len(rows))
            for store, part in zip(stores.values(), memories, strict=True):
                store.write(slice(0, len(rows)), torch.from_numpy(part).to(self._device))
        actions = self._act(self._predicting, rows, starts, deterministic, previous_actions, None)
        memory = self._predicting.memory_of(torch.arange(len(rows), device=self._device))
        return self._converted(actions, single), (*(part.cpu().numpy() for part in memory.values()), actions)

    def export(self, path: str | os.PathLike[str], format: str | None = None) -> Path:
        """Write the policy as a file that runs without Engram, `.onnx` or (torch) `.pt2`, and return its path.

        The file is compared with the policy over 1,000 steps first. If they disagree, nothing is written.
        """
        from engram.export.write import choose_format, export_agent

        path = checked_path(path)
        uses_memory = self.settings.trainer.memory != "off"
        agent = copy.deepcopy(self.policy)  # exporting moves it to the CPU
        export_agent(agent, path, choose_format(path, format), self.settings.env, use_memory=uses_memory)
        return path

    @torch.no_grad()
    def _act(
        self,
        agent: MettaAgent,
        rows: np.ndarray,
        starts: np.ndarray,
        deterministic: bool,
        previous_actions: np.ndarray | None,
        rewards: Any,
    ) -> np.ndarray:
        """Actions of the policy [B] or [B, n]. Without previous actions, all rows start an episode."""
        count = len(rows)
        if previous_actions is None:
            starts = np.ones(count, bool)
            space = agent.env_spec.single_action_space
            previous_actions = np.zeros((count, *space.shape), space.dtype)
        self._observations.write_previous_actions(self._convert_actions(previous_actions), starts)
        if self.settings.trainer.memory == "off":
            starts = np.ones(count, bool)
        noise = torch.full((count, agent.action_space.noise), MEAN_NOISE, device=self._device)
        if not deterministic:
            noise.uniform_(generator=self._generator)
        flags = torch.from_numpy(starts).to(self._device)
        fields: Mapping[str, Any] = {
            "env_obs": torch.from_numpy(rows).to(self._device),
            "dones": torch.zeros_like(flags),
            "truncateds": torch.zeros_like(flags),
            "starts": flags,
            "training_env_id_start": torch.zeros(count, dtype=torch.long, device=self._device),
            "action_noise": noise,
            "previous_actions": torch.from_numpy(previous_actions).to(self._device),
            "previous_rewards": self._scaled_rewards(rewards, starts),
        }
        agent.reserve_memory(count)
        td = agent(TensorDict(fields, batch_size=[count]))
        actions = td["actions"]
        if deterministic:
            actions = agent.action_space.greedy(td["full_log_probs"], actions)
        return actions.cpu().numpy()

    def _scaled_rewards(self, rewards: Any, starts: np.ndarray) -> torch.Tensor:
        """The previous rewards [B], scaled as in training."""
        previous = self.policy.policy.previous
        if rewards is None and previous is not None and "reward" in previous.names and not starts.all():
            raise UserError("rewards: this policy reads the previous reward: use act(observation, rewards=reward)")
        given = np.zeros(len(starts)) if rewards is None else np.asarray(rewards, np.float64)
        given = given * getattr(self.settings.env, "reward_scale", 1.0)
        if given.shape not in ((), starts.shape):
            raise UserError(f"rewards: expected one for each of {len(starts)} rows, got shape {given.shape}")
        return torch.from_numpy(np.broadcast_to(given, starts.shape).astype(np.float32)).to(self._device)

    def _converted(self, actions: np.ndarray, single: bool) -> Any:
        """Actions in the environment's form."""
        converted = np.asarray(self._convert_actions(actions), dtype=self.action_space.dtype)
        return converted[0] if single else converted

    def _checked_state(self, state: Any, rows: int) -> State:
        action_shape = self.policy.env_spec.single_action_space.shape
        expected = [(rows, *shape) for shape in (*self.policy.memory_shapes().values(), action_shape)]
        got = [np.shape(part) for part in state] if isinstance(state, tuple | list) else type(state).__name__
        if got != expected:
            raise UserError(f"state: expected what predict returned for the same rows, {expected}, got {got}")
        *memories, previous_actions = state
        return (*(np.asarray(part, np.float32) for part in memories), np.asarray(previous_actions))

    def __repr__(self) -> str:
        return f"Agent({self.settings.policy.name} on {self.policy.env_spec.name})"


def load(
    run: str | os.PathLike[str] | Run,
    checkpoint: str = "latest",
    *,
    env: Env | None = None,
    policy: PolicyChoice | None = None,
    device: str = "auto",
    seed: int | None = None,
    trust: bool = False,
) -> Agent:
    """The trained agent of a run: of its latest checkpoint, its `best`, or one by its path.

    >>> import engram
    >>> agent = engram.load("runs/first")
    >>> int(agent.act([1, 0, 0, 0, 0, 0], deterministic=True)) in range(4)
    True

    `env` and `policy` replace those of the run, for example classes that were defined in another script. `seed` makes
    sampled actions reproducible. `trust=True` allows code named in the run, although you did not make the run here.
    """
    directory = directory_of(run)
    if seed is not None and (not isinstance(seed, int | np.integer) or seed < 0):
        raise UserError(f"seed: {seed!r} is not a whole number from 0")
    if device not in DEVICES:
        raise UserError(f"device: {device!r} is not one of {', '.join(DEVICES)}{suggestion(str(device), DEVICES)}")
    given = {"env": env, "py_agent": policy}
    unused = ["trainer", "hooks", *(name for name, choice in given.items() if choice is not None)]
    settings = _with_replacements(load_run(directory, trust, unused), env, policy)
    spec = make_spec(settings.env)
    agent = load_agent(checkpoint_of(directory, checkpoint), settings.policy, spec, training=False)
    return Agent(agent.to(choose_device(device)), row_spaces(settings.env), settings, seed)


def _with_replacements(settings: RunSettings, env: Env | None, policy: PolicyChoice | None) -> RunSettings:
    if env is not None:
        given: Mapping[str, Any] = env if isinstance(env, Mapping) else {"env": env_choice(env)}
        settings = with_env(settings, [*from_python(given)])
    if policy is not None and settings.py_agent is not None:
        name = policy_choice(policy).get("py_agent", settings.py_agent.name)
        settings = settings.model_copy(update={"py_agent": settings.py_agent.model_copy(update={"name": name})})
    return settings


def _flags(given: Any, rows: int, name: str) -> np.ndarray:
    """One flag for each row."""
    if given is None:
        return np.zeros(rows, bool)
    flags = np.asarray(given)
    if flags.dtype.kind not in "biuf" or flags.shape not in ((), (rows,)):
        raise UserError(f"{name}: expected one true or false for each of {rows} rows, got {given!r}")
    return np.broadcast_to(flags.astype(bool), (rows,)).copy()
