"""Settings of training. Light to import: they are checked before torch is loaded."""

from typing import Annotated, Literal

from pydantic import Field

from engram.settings import Settings

Positive = Annotated[int, Field(ge=1)]
Size = Annotated[int, Field(ge=1, le=2**31 - 1)]
Workers = Annotated[int, Field(ge=0, le=1024)]
Share = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]
Greater = Annotated[float, Field(gt=0)]


class PPO(Settings):
    """The loss and the advantages."""

    gamma: Share = 0.977
    gae_lambda: Share = 0.916
    rho_clip: Greater = 1.0  # V-trace: bound of the importance ratio in the target
    c_clip: Greater = 1.0  # V-trace: bound of the ratio that carries corrections back in time
    clip_coef: Greater = 0.1
    vf_clip_coef: Greater | None = 0.1  # null: the value loss is not clipped
    vf_coef: NonNegative = 0.44
    ent_coef: NonNegative = 0.0021
    norm_adv: bool = True
    target_kl: Greater | None = None  # stops the epoch's updates once the policy has moved this far
    l2_init_coef: NonNegative = 0.0


class Optimizer(Settings):
    type: Literal["adam", "adamw"] = "adam"
    learning_rate: Greater = 0.00046
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    eps: Greater = 1e-12
    weight_decay: NonNegative = 0.0
    max_grad_norm: Greater = 0.5


class Prioritized(Settings):
    """Segments with large advantages are replayed more often; importance weights undo the bias."""

    prio_alpha: Share = 0.0  # 0: uniform
    prio_beta0: Share = 0.6  # annealed to 1 over the run


class Checkpoint(Settings):
    interval: Positive = 10  # epochs between two checkpoints
    keep: Positive = 3


class Trainer(Settings):
    total_timesteps: Positive = 500_000
    num_envs: Size | None = None  # null: what the machine can do
    num_workers: Workers | None = None  # 0: environments step in this process; null: what the machine can do
    worker_timeout: Greater = 20.0  # seconds a worker may take for one step
    bptt_horizon: Size = 64
    batch_size: Size | None = None  # agent-steps per epoch; null: one segment per row
    minibatch_size: Size | None = None  # agent-steps per gradient step; null: what the machine can do
    update_epochs: Positive | None = None  # passes over each batch; null: 1 for large batches, 4 for small ones
    memory: Literal["carry", "reset", "off"] = "carry"
    replay_error_bound: Greater = 1e-3
    compile: bool = False
    ppo: PPO = PPO()
    optimizer: Optimizer = Optimizer()
    prioritized: Prioritized = Prioritized()
    checkpoint: Checkpoint = Checkpoint()


class Wandb(Settings):
    """Weights & Biases: off unless asked for; the run's own files hold the same figures."""

    enabled: bool = False
    mode: Literal["online", "offline"] = "online"
    project: str = "engram"
    entity: str | None = None  # null: the account's own
