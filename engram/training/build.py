"""Builds what a run trains with: the agent, the experience buffer, the rollout and the optimizer."""

from pathlib import Path

import torch
from gymnasium import spaces

from engram.agent.metta_agent import MettaAgent
from engram.agent.settings import PyAgent, YamlAgent
from engram.env.spec import EnvSpec
from engram.env.vector import VectorEnv
from engram.training.checkpoint.files import Checkpoint
from engram.training.checkpoint.origin import begin_from, load_agent
from engram.training.device import Threads
from engram.training.distributed import ALONE, World
from engram.training.experience import Experience
from engram.training.kickstart import annealing, load_teacher
from engram.training.metrics import Progress, ReturnTracker
from engram.training.optimizer import make_optimizer
from engram.training.rollout import Rollout
from engram.training.schedule import Schedules
from engram.training.seeding import derive_seed, generator
from engram.training.settings import Trainer
from engram.training.sizes import Sizes
from engram.training.state import Training
from engram.training.trace import Trace
from engram.training.watchdog import ExplosionGuard


def make_agent(
    policy: PyAgent | YamlAgent, spec: EnvSpec, trainer: Trainer, checkpoint: Checkpoint | None, init_from: str | None
) -> MettaAgent:
    """From the run's checkpoint, from the weights of the run or checkpoint `init_from`, or new."""
    if checkpoint is not None:
        return load_agent(checkpoint, policy, spec, training=True)
    if init_from is not None:
        return begin_from(Path(init_from), policy, spec)
    agent = MettaAgent(spec, policy)
    if trainer.chrono_init:
        agent.spread_time_scales(trainer.bptt_horizon)
    return agent


def share_weights(agent: MettaAgent, seed: int, world: World) -> None:
    """Give all ranks the weights of rank 0, and each rank its own random numbers."""
    world.broadcast_weights(agent)
    if not world.main:
        torch.manual_seed(derive_seed(seed, "policy", world.rank))  # for policies that draw random numbers


def build(
    agent: MettaAgent,
    env: VectorEnv,
    sizes: Sizes,
    trainer: Trainer,
    device: torch.device,
    seed: int,
    trace: Trace,
    world: World = ALONE,
    trust: bool = False,
) -> Training:
    """All parts of training, in their initial state."""
    agent.reserve_memory(sizes.rows)
    agent.set_burn_in(trainer.burn_in)
    spec = agent.get_agent_experience_spec()
    action_space = agent.env_spec.single_action_space
    continuous = isinstance(action_space, spaces.Box)
    spec["actions"] = torch.zeros(action_space.shape, dtype=torch.float32 if continuous else torch.long)
    teacher = None
    if trainer.kickstart is not None:
        teacher = load_teacher(trainer.kickstart, agent.env_spec, sizes.rows, device, trust)
        spec.update(teacher.fields)
    experience = Experience(
        total_agents=sizes.rows,
        batch_size=sizes.batch_size,
        bptt_horizon=sizes.horizon,
        minibatch_size=sizes.minibatch_size,
        experience_spec=spec,
        memory_shapes=agent.memory_shapes(),
        device=device,
        burn_in=trainer.burn_in,
    )
    actions, threads = generator(device, seed, "actions"), Threads(sizes.num_workers, sizes.rows, len(env.batches))
    return Training(
        agent=agent,
        env=env,
        rollout=Rollout(agent, env, experience, trainer, actions, threads, trace, teacher, world),
        optimizer=make_optimizer(agent, trainer.optimizer),
        generator=generator(device, seed, "segments", world.rank),
        returns=ReturnTracker(),
        progress=Progress(),
        schedules=Schedules({**trainer.schedule, **annealing(trainer)}),
        explosion=ExplosionGuard(),
        trace=trace,
        world=world,
    )
