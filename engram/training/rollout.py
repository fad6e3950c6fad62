"""Rollout: the policy acts in the environments until the experience is full."""

# B rows of a batch

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from engram.agent.actions import MEAN_NOISE, GaussianActions
from engram.agent.metta_agent import MettaAgent
from engram.env.vector import Batch, VectorEnv
from engram.training.device import Threads, autocast
from engram.training.distributed import World
from engram.training.experience import Experience
from engram.training.exploration import ActionNoise
from engram.training.kickstart import Teacher
from engram.training.metrics import Timers
from engram.training.settings import Trainer
from engram.training.trace import Trace


class Rollout:
    """Alternates environments and policy. Every row continues where the previous rollout left it."""

    def __init__(
        self,
        agent: MettaAgent,
        env: VectorEnv,
        experience: Experience,
        settings: Trainer,
        generator: torch.Generator,
        threads: Threads,
        trace: Trace,
        teacher: Teacher | None,
        world: World,
    ) -> None:
        """`generator` draws the action noise of all ranks' rows, so it must be in the same state on every rank."""
        self.agent, self.env, self.experience = agent, env, experience
        self.memory, self.precision = settings.memory, settings.precision
        self.threads, self.trace = threads, trace
        self.teacher = teacher
        self.batch_size = experience.batch_size * world.size  # agent-steps of all ranks
        self._own_rows = slice(world.rank * experience.rows, (world.rank + 1) * experience.rows)
        self.device = experience.device
        action_space, all_rows = agent.action_space, world.size * experience.rows
        continuous = isinstance(action_space, GaussianActions)
        correlation = settings.noise_correlation or 0.0
        self.noise = ActionNoise(generator, all_rows, action_space.noise, continuous, correlation)
        self._held: list[Batch] = []  # received, used for bootstrapping, and not yet acted on
        self._tds: dict[int, TensorDict] = {}  # views of the environments' buffers, by a batch's first row

    @torch.no_grad()
    def collect(self, timers: Timers, teaching: bool = False) -> Experience:
        """Fill the experience; with `teaching` also the teacher's outputs."""
        experience = self.experience
        experience.begin()
        if self.memory == "reset":
            self.agent.reset_memory()
        # Noise is sampled for all rows at once, so that an action depends neither on the order in which batches arrive
        # nor on the rank that has the row.
        noise = self.noise.sample(experience.steps_per_row)[:, self._own_rows]
        with self.threads.while_acting(), autocast(self.precision, self.device):
            while not experience.full:
                with timers("environment"):
                    batch = self._held.pop(0) if self._held_is_next() else self.env.recv()
                with timers("inference"):
                    actions = self._step(batch, noise, teaching)
                if actions is None:
                    self._held.append(batch)
                else:
                    with timers("environment"):
                        self.env.send(batch, actions)
        return experience

    def change_environment(self, env: VectorEnv) -> None:
        """Continue in a different environment, which has been reset, with empty memory."""
        self.env = env
        self._held.clear()
        self._tds.clear()
        self.agent.reset_memory()

    def _held_is_next(self) -> bool:
        """Whether the next batch is one held back by the previous rollout; one held back by this rollout is not."""
        return bool(self._held) and bool((self.experience.position[self._held[0].rows] == 0).all())

    def _step(self, batch: Batch, noise: Tensor, teaching: bool) -> np.ndarray | None:
        """Store one step of these rows and return their actions; None if they are full and the step only bootstraps."""
        experience, rows = self.experience, batch.rows
        step = experience.step_of(rows)
        if batch.interrupted.any():
            experience.mask_unfinished(torch.from_numpy(batch.interrupted).to(self.device), rows)
        td = self._to_td(batch)
        if batch.buffers.truncations.any():
            td["final_values"] = self._final_values(batch)
        if step == experience.steps_per_row:
            experience.store_bootstrap(self._look_ahead(td, self._ids(rows)), rows)
            return None
        if step % experience.horizon == 0:
            experience.store_memory(self.agent.memory_of(self._ids(rows)), rows)
        if self.teacher is not None and teaching:
            td.update(self.teacher.evaluate(td))
        td["action_noise"] = noise[step, rows]
        td = self._act(td)
        experience.store(td, rows)
        if self.trace.steps:
            self.trace("rollout", td, memory=self.agent.stored_memory())
            self.trace("experience", experience.buffer, memory=experience.memory)
        return td["actions"].cpu().numpy()

    def _to_td(self, batch: Batch) -> TensorDict:
        count, first = len(batch.buffers.rewards), batch.rows.start
        if first not in self._tds:
            fields = {
                "env_obs": batch.buffers.observations,
                "rewards": batch.buffers.rewards,
                "dones": batch.buffers.terminals,
                "truncateds": batch.buffers.truncations,
                "starts": batch.buffers.starts,
                "alive": batch.buffers.alive,
            }
            if self.agent.policy.previous is not None:
                fields |= {"previous_actions": batch.buffers.actions, "previous_rewards": batch.buffers.rewards}
            tensors = {name: torch.from_numpy(field) for name, field in fields.items()}
            tensors["training_env_id_start"] = torch.full((count,), first, device=self.device)
            tensors["final_values"] = torch.zeros(count, device=self.device)
            self._tds[first] = TensorDict(tensors, batch_size=[count])
        td = self._tds[first]
        if self.device.type == "cpu":
            return td.copy()  # a new td of the same tensors
        return TensorDict({name: field.to(self.device, non_blocking=True) for name, field in td.items()}, [count])

    def _act(self, td: TensorDict) -> TensorDict:
        if self.memory == "off":
            td["starts"] = torch.ones_like(td["starts"])  # memory is cleared before every step
        return self.agent(td)

    def _final_values(self, batch: Batch) -> Tensor:
        """The value of each truncated episode's true final observation, with the memory its agent had then."""
        truncated = np.flatnonzero(batch.buffers.truncations)
        index = torch.from_numpy(truncated).to(self.device)
        flags = torch.zeros(len(truncated), dtype=torch.bool, device=self.device)
        final = TensorDict(
            {
                "env_obs": torch.from_numpy(batch.buffers.final_observations[truncated]).to(self.device),
                "dones": flags,
                "truncateds": flags,
                "starts": flags,  # it continues the truncated episode
                "previous_actions": torch.from_numpy(batch.buffers.actions[truncated]).to(self.device),
                "previous_rewards": torch.from_numpy(batch.buffers.rewards[truncated]).to(self.device),
            },
            batch_size=[len(truncated)],
        )
        values = torch.zeros(len(batch.buffers.truncations), device=self.device)
        values[index] = self._look_ahead(final, index + batch.rows.start)["values"]
        return values

    def _look_ahead(self, td: TensorDict, ids_B: Tensor) -> TensorDict:
        """Call the policy with these rows' memory without updating it; the actions are not taken."""
        td["memory"] = TensorDict(self.agent.memory_of(ids_B), td.batch_size)
        td["action_noise"] = torch.full((len(ids_B), self.agent.action_space.noise), MEAN_NOISE, device=self.device)
        return self._act(td)

    def _ids(self, rows: slice) -> Tensor:
        return torch.arange(rows.start, rows.stop, device=self.device)
