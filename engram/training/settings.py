"""Settings of training. Light to import: they are checked before torch is loaded."""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from engram.settings import Settings
from engram.training.schedule import SCHEDULABLE, Schedule, by_dotted_name, problems

Positive = Annotated[int, Field(ge=1)]
Steps = Annotated[int, Field(ge=1, le=10**15)]  # at a million a second, 30 years
Size = Annotated[int, Field(ge=1, le=2**31 - 1)]
Environments = Annotated[int, Field(ge=1, le=2**20)]  # more would fill the memory before the first message
Workers = Annotated[int, Field(ge=0, le=1024)]
Fraction = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]

DEFAULT_SCHEDULE = {"optimizer.learning_rate": {"kind": "linear", "to": 0}}  # where the settings have none
EVALUATION_SEED = 710_551_043  # the same episodes for every run, and none that it was trained on


class PPO(Settings):
    """The loss and the advantages."""

    gamma: Fraction = 0.99
    gae_lambda: Fraction = 0.95
    rho_clip: PositiveFloat = 1.0  # V-trace: bound of the importance ratio in the target
    c_clip: PositiveFloat = 1.0  # V-trace: bound of the ratio that carries corrections back in time
    clip_coef: PositiveFloat = 0.2
    vf_clip_coef: PositiveFloat | None = None  # null: the value loss is not clipped
    vf_coef: NonNegative = 0.44
    ent_coef: NonNegative | None = None  # null: 0.01, annealed to 0; 0 for continuous actions
    norm_adv: bool = True
    adv_floor: NonNegative = 0.1  # least std to divide advantages by, relative to the largest std of returns so far
    norm_returns: bool = True  # the critic learns in units of the returns (PopArt), whatever the scale of rewards
    target_kl: PositiveFloat | None = None  # stops the epoch's updates once the KL divergence exceeds this
    l2_init_coef: NonNegative = 0.0  # of the squared distance of weights from their initial values


class Optimizer(Settings):
    type: Literal["adam", "adamw", "muon"] = "adam"  # muon: for the matrices of hidden layers, adamw for the rest
    learning_rate: PositiveFloat = 0.001
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    eps: PositiveFloat = 1e-12
    weight_decay: NonNegative = 0.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.95  # of muon
    max_grad_norm: PositiveFloat = 0.5
    fused: bool = True  # adam and adamw in one kernel: faster, the same but for rounding


class Prioritized(Settings):
    """Segments with large advantages are replayed more often; importance weights undo the bias."""

    prio_alpha: Fraction = 0.0  # 0: uniform
    prio_beta0: Fraction = 0.6  # annealed to 1 over the run


class Kickstart(Settings):
    """Imitation of a trained policy, annealed to none."""

    teacher: str  # the directory of a run or of one of its checkpoints
    action_coef: NonNegative = 1.0  # of the cross-entropy with the teacher's action probabilities
    value_coef: NonNegative = 1.0  # of the squared difference from the teacher's values
    anneal_steps: Positive | None = None  # agent-steps until both coefficients reach 0; null: the whole run


class CheckpointSettings(Settings):
    interval: Positive = 10  # epochs between two checkpoints
    keep: Positive = 3


class Trainer(Settings):
    total_timesteps: Steps = 300_000
    num_envs: Environments | None = None  # null: chosen for the machine
    num_workers: Workers | None = None  # 0: environments step in this process; null: chosen for the machine
    worker_timeout: PositiveFloat = 20.0  # seconds a worker, or environments in this process, may take for one step
    worker_restarts: Workers = 3  # of failed environments within ten minutes; 0: the first failure ends the run
    disk_timeout: NonNegative = 600.0  # seconds of failing writes, such as on a full disk, before the run stops
    peer_timeout: PositiveFloat = 300.0  # seconds that ranks wait for each other
    scale_batches_by_world_size: bool = False  # the sizes given here are those of all ranks together, not of each
    bptt_horizon: Size = 128
    burn_in: Annotated[int, Field(ge=0)] = 0  # first steps of a segment that only warm memory up
    batch_size: Size | None = None  # agent-steps per epoch; null: chosen for the budget and the machine
    minibatch_size: Size | None = None  # agent-steps per gradient step; null: chosen for the machine
    accumulate: Positive = 1  # gradient accumulation: micro-batches per minibatch; the gradient is the same
    update_epochs: Positive | None = None  # passes over each batch; null: 4, or 1 of a large batch
    memory: Literal["carry", "reset", "off"] = "carry"
    norm_obs: bool = True  # running normalisation of vectors and symbols, by policies that have it
    chrono_init: bool = True  # half of an LSTM's units begin with lifetimes of up to bptt_horizon steps
    noise_correlation: Annotated[float, Field(ge=0, lt=1)] | None = None  # of action noise; null: 0.7, or 0 for symbols
    on_nan: Literal["stop", "skip"] = "stop"  # skip: leave out minibatches, and restart environments, with bad numbers
    replay_error_bound: PositiveFloat | None = None  # a larger error stops the run; null: 0.001, with bfloat16 0.1
    gradient_bound: PositiveFloat | None = 1000.0  # norm / running median; several epochs above it stop the run
    precision: Literal["float32", "bfloat16"] = "float32"  # of encoders and heads; memory is always float32
    evaluate_interval: Positive | None = None  # epochs between two evaluations; null: none
    evaluate_episodes: Positive = 32
    audit: Positive | None = None  # epochs between two memory audits; null: none
    ppo: PPO = PPO()
    optimizer: Optimizer = Optimizer()
    prioritized: Prioritized = Prioritized()
    kickstart: Kickstart | None = None
    schedule: Annotated[dict[str, Schedule], Field(validate_default=True)] = {}  # by name, such as ppo.ent_coef
    checkpoint: CheckpointSettings = CheckpointSettings()
    tensorboard: bool = False  # write the metrics for TensorBoard too
    trace: Annotated[int, Field(ge=0)] = 0  # steps for which shape, dtype and RMS of every field are logged
    profile: bool = False  # profile one epoch

    @property
    def teaching(self) -> bool:
        """Whether there is a teacher with a coefficient above 0."""
        return self.kickstart is not None and (self.kickstart.action_coef > 0 or self.kickstart.value_coef > 0)

    @field_validator("burn_in")
    @classmethod
    def _leaves_something(cls, burn_in: int, info: ValidationInfo) -> int:
        horizon = info.data.get("bptt_horizon")
        if horizon is not None and burn_in >= horizon:
            raise ValueError(
                f"{burn_in} leaves nothing to learn from: must be less than trainer.bptt_horizon ({horizon})"
            )
        return burn_in

    @field_validator("schedule", mode="before")
    @classmethod
    def _by_dotted_name(cls, schedule: Any) -> Any:
        return DEFAULT_SCHEDULE | by_dotted_name(schedule) if isinstance(schedule, dict) else schedule

    @field_validator("schedule")
    @classmethod
    def _fits(cls, schedule: dict[str, Schedule], info: ValidationInfo) -> dict[str, Schedule]:
        sections = {name: info.data[name] for name in SCHEDULABLE if name in info.data}
        if len(sections) == len(SCHEDULABLE) and (found := problems(schedule, sections)):
            raise ValueError("; and ".join(found))
        return schedule


class Wandb(Settings):
    """Weights & Biases, off by default; the run's own files hold the same figures."""

    enabled: bool = False
    mode: Literal["online", "offline"] = "online"
    project: str = "engram"
    entity: str | None = None  # null: the account's own
