"""The training tasks that `engram bench train` and the races against other systems share."""

from typing import Any

from engram.env.settings import Arena

CARTPOLE: dict[str, Any] = {
    "name": "cartpole",
    "envs": 64,
    "horizon": 64,
    "minibatches": 4,
    "epochs": 4,
    "hidden": 128,
    "learning_rate": 0.001,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip": 0.2,
    "ent_coef": 0.01,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
    "seed": 1,
    "exact": True,  # the plain loop resets memory inside segments
}
ARENA: dict[str, Any] = {
    **CARTPOLE,
    "name": "arena",
    "envs": 16,
    "minibatches": 6,  # of 4096 steps
    "epochs": 1,
    "learning_rate": 0.00046,
    "gamma": 0.977,
    "gae_lambda": 0.916,
    "clip": 0.1,
    "ent_coef": 0.0021,
    "vf_coef": 0.44,
    "exact": False,  # the plain loop never resets memory inside segments
}
WORKERS = {"0 workers": 0, "1 worker": 1, "2 workers": 2}


def arena_settings(task: dict[str, Any]) -> Arena:
    return Arena(other_resources=task.get("resources", []))


def overrides_of(task: dict[str, Any], workers: int) -> list[str]:
    """The task as settings of `engram train`."""
    batch = _batch_size(task)
    env = ["env=gym", "env.id=CartPole-v1", "env.wrappers=[mask_velocity]", "env.reward_scale=0.1"]
    network = ["py_agent=engram.bench.cartpole_policy:CartPolePolicy", f"py_agent.hidden_size={task['hidden']}"]
    resources = ",".join(arena_settings(task).other_resources)
    return [
        *(env if task["name"] == "cartpole" else ["env=arena", f"env.other_resources=[{resources}]"]),
        *(network if task["name"] == "cartpole" else ["py_agent=fast"]),
        f"seed={task['seed']}",
        f"trainer.num_envs={task['envs']}",
        f"trainer.num_workers={workers}",
        f"trainer.bptt_horizon={task['horizon']}",
        f"trainer.batch_size={batch}",
        f"trainer.minibatch_size={batch // task['minibatches']}",
        f"trainer.update_epochs={task['epochs']}",
        f"trainer.optimizer.learning_rate={task['learning_rate']}",
        f"trainer.optimizer.max_grad_norm={task['max_grad_norm']}",
        "trainer.optimizer.eps=0.00001",
        f"trainer.ppo.gamma={task['gamma']}",
        f"trainer.ppo.gae_lambda={task['gae_lambda']}",
        f"trainer.ppo.clip_coef={task['clip']}",
        "trainer.ppo.vf_clip_coef=null",
        f"trainer.ppo.ent_coef={task['ent_coef']}",
        f"trainer.ppo.vf_coef={task['vf_coef']}",
        "trainer.checkpoint.interval=1000000",  # no system writes checkpoints while it is measured
    ]


def steps_per_update(task: dict[str, Any]) -> float:
    """Environment steps per optimiser step."""
    return _batch_size(task) / (task["minibatches"] * task["epochs"])


def _batch_size(task: dict[str, Any]) -> int:
    return task["envs"] * (1 if task["name"] == "cartpole" else Arena().agents) * task["horizon"]
