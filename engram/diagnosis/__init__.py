"""Diagnosis: why a run does not learn, from its metrics and settings alone.

Rules read the metrics and the `Setup` of a run. What they find are `Finding`s, which make the `Diagnosis`.
"""

from typing import Any, Literal, NamedTuple

from engram.stored.plan import StoredPlan

Verdict = Literal["healthy", "faults", "unknown", "early"]


class Finding(NamedTuple):
    name: str
    evidence: str  # in figures
    meaning: str
    advice: str

    @property
    def line(self) -> str:
        return f"{self.name}: {self.evidence}"


class Diagnosis(NamedTuple):
    verdict: Verdict
    summary: str  # one sentence
    findings: list[Finding]

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "findings": [finding._asdict() for finding in self.findings]}


class Setup(NamedTuple):
    """The settings and figures of an environment that a diagnosis reads."""

    total_timesteps: int
    learning_rate: float
    clip_coef: float
    gamma: float
    ent_coef: float | None
    max_grad_norm: float
    bptt_horizon: int
    memory: str  # carry, reset or off
    delay: int | None = None  # steps from the cue to the action that needs it, where known
    ceiling: float | None = None  # the best mean return without memory, where known
    goal: float | None = None  # the best possible mean return, where known
    uniform_entropy: float | None = None  # of uniform actions; None: continuous actions, or unknown
    workers: int | None = None  # processes that step environments
    immediate_rewards: bool = False  # every action is rewarded in its own step
    sees_previous: bool = False  # the policy reads the previous action or reward
    target_kl: float | None = None  # ends the updates of an epoch

    @classmethod
    def of(cls, trainer: Any, env: Any, policy: Any, plan: StoredPlan | None) -> "Setup":
        """From the settings `trainer`, `env` and `policy` of a run, and its plan if it has one."""
        return cls(
            total_timesteps=trainer.total_timesteps,
            learning_rate=trainer.optimizer.learning_rate,
            clip_coef=trainer.ppo.clip_coef,
            gamma=trainer.ppo.gamma,
            ent_coef=trainer.ppo.ent_coef,
            max_grad_norm=trainer.optimizer.max_grad_norm,
            bptt_horizon=trainer.bptt_horizon,
            memory=trainer.memory,
            delay=delay_of(env),
            ceiling=plan.env.memoryless_ceiling if plan else None,
            goal=plan.env.mean_return_goal if plan else None,
            uniform_entropy=plan.env.uniform_entropy if plan else None,
            workers=plan.sizes.num_workers if plan else None,
            immediate_rewards=env.kind == "recall",
            sees_previous=bool(getattr(policy, "previous", None)),
            target_kl=trainer.ppo.target_kl,
        )


def delay_of(env: Any) -> int | None:
    """Steps between a cue and the action that depends on it; None if the environment has no such cue."""
    if env.kind == "recall":
        return int(env.delay)
    return int(env.corridor) if env.kind == "tmaze" else None
