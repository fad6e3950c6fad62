"""Rollout: the policy lives in the environments until the experience is full."""

# B rows of a batch

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from engram.agent.metta_agent import MettaAgent
from engram.env.vector import Batch, VectorEnv
from engram.training.distributed import ALONE, World
from engram.training.experience import Experience
from engram.training.kickstart import Teacher
from engram.training.metrics import Timers
from engram.training.precision import autocast
from engram.training.settings import Trainer
from engram.training.threads import Threads
from engram.training.trace import Trace


class Rollout:
    """Steps environments and policy in turn; each row goes on exactly where it was, from one rollout to the next."""

    def __init__(
        self,
        agent: MettaAgent,
        env: VectorEnv,
        experience: Experience,
        settings: Trainer,
        generator: torch.Generator,
        threads: Threads,
        trace: Trace,
        teacher: Teacher | None = None,
        world: World = ALONE,
    ) -> None:
        """`generator` draws the noise of actions, of the rows of all processes: the same on each of them."""
        self.agent, self.env, self.experience = agent, env, experience
        self.memory, self.precision = settings.memory, settings.precision
        self.generator, self.threads, self.trace = generator, threads, trace
        self.teacher, self._teaching = teacher, False
        self._all_rows = world.size * experience.rows
        self._own_rows = slice(world.rank * experience.rows, (world.rank + 1) * experience.rows)
        self.device = experience.device
        self._held: list[Batch] = []  # received, judged, and not yet acted upon
        self._buffers: dict[int, TensorDict] = {}  # what environments write into, by a batch's first row

    @torch.no_grad()
    def collect(self, timers: Timers, teaching: bool = False) -> None:
        """Fill the experience; `teaching`: with what the teacher says of it too."""
        experience, self._teaching = self.experience, teaching
        experience.begin()
        if self.memory == "reset":
            self.agent.reset_memory()
        # Noise is drawn for all rows at once: an action does not depend on the order in which batches arrive, nor on
        # which process has the row.
        shape = (experience.steps_per_row, self._all_rows, self.agent.action_space.noise)
        noise = torch.rand(shape, generator=self.generator, device=self.device)[:, self._own_rows]
        with self.threads.while_acting(), autocast(self.precision, self.device):
            while not experience.full:
                with timers("environment"):
                    held = self._held and self._at_start()
                    batch = self._held.pop(0) if held else self.env.recv()
                with timers("inference"):
                    actions = self._step(batch, noise)
                if actions is None:
                    self._held.append(batch)
                else:
                    with timers("environment"):
                        self.env.send(batch, actions)

    def _at_start(self) -> bool:
        """Batches held back from the rollout before come first."""
        return bool((self.experience.position[self._held[0].rows] == 0).all())

    def _step(self, batch: Batch, noise: Tensor) -> np.ndarray | None:
        """Store one step of these rows and return their actions; None when they were full and this is what followed."""
        experience, rows = self.experience, batch.rows
        step = experience.step_of(rows)
        td = self._to_td(batch)
        if batch.buffers.truncations.any():
            td["final_values"] = self._final_values(batch)
        if step == experience.steps_per_row:
            self._look_ahead(td, self._ids(rows))
            experience.store_tail(self._act(td), rows)
            return None
        if step % experience.horizon == 0:
            experience.store_memory(self.agent.memory_of(self._ids(rows)), rows)
        td["action_noise"] = noise[step, rows]
        td = self._act(td)
        if self.teacher is not None and self._teaching:
            td.update(self.teacher.judge(td))
        experience.store(td, rows)
        if self.trace.steps:
            self.trace("rollout", td, memory=self.agent.stored_memory())
            self.trace("experience", experience.buffer, memory=experience.memory)
        return td["actions"].cpu().numpy()

    def _to_td(self, batch: Batch) -> TensorDict:
        count = len(batch.buffers.rewards)
        if batch.rows.start not in self._buffers:  # a batch's buffers stay where they are
            fields = {
                "env_obs": batch.buffers.observations,
                "rewards": batch.buffers.rewards,
                "dones": batch.buffers.terminals,
                "truncateds": batch.buffers.truncations,
                "alive": batch.buffers.alive,
            }
            tensors = {name: torch.from_numpy(field) for name, field in fields.items()}
            tensors["training_env_id_start"] = torch.full((count,), batch.rows.start, device=self.device)
            tensors["final_values"] = torch.zeros(count, device=self.device)
            self._buffers[batch.rows.start] = TensorDict(tensors, batch_size=[count])
        held = self._buffers[batch.rows.start]
        if self.device.type == "cpu":
            return held.copy()  # of the td: it has the same tensors
        return TensorDict({name: field.to(self.device, non_blocking=True) for name, field in held.items()}, [count])

    def _act(self, td: TensorDict) -> TensorDict:
        if self.memory != "off":
            return self.agent(td)
        dones = td["dones"]
        td["dones"] = torch.ones_like(dones)  # every observation is the first: nothing is ever remembered
        td = self.agent(td)
        td["dones"] = dones
        return td

    def _final_values(self, batch: Batch) -> Tensor:
        """The value of each truncated episode's true last observation, with the memory its agent had then."""
        cut = np.flatnonzero(batch.buffers.truncations)
        index = torch.from_numpy(cut).to(self.device)
        last = TensorDict(
            {
                "env_obs": torch.from_numpy(batch.buffers.final_observations[cut]).to(self.device),
                "dones": torch.full((len(cut),), self.memory == "off", device=self.device),
                "truncateds": torch.zeros(len(cut), dtype=torch.bool, device=self.device),
            },
            batch_size=[len(cut)],
        )
        self._look_ahead(last, index + batch.rows.start)
        values = torch.zeros(len(batch.buffers.truncations), device=self.device)
        values[index] = self.agent(last)["values"]
        return values

    def _look_ahead(self, td: TensorDict, ids_B: Tensor) -> None:
        """Let a call see these rows' memory without moving it on; its actions are not for taking."""
        td["memory"] = TensorDict(self.agent.memory_of(ids_B), td.batch_size)
        td["action_noise"] = torch.full((len(ids_B), self.agent.action_space.noise), 0.5, device=self.device)

    def _ids(self, rows: slice) -> Tensor:
        return torch.arange(rows.start, rows.stop, device=self.device)
