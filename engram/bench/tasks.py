"""The tasks that are trained on from end to end, the same work for everybody: as our settings, and for others."""

from typing import Any

from engram.env.mettagrid.worlds import world
from engram.env.registry import make_spec
from engram.env.settings import Arena

POLE: dict[str, Any] = {
    "name": "pole",
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
    "exact": True,
}
ARENA: dict[str, Any] = {
    **POLE,
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
    "exact": False,  # the plain loop, as the trainer had it that Engram grew out of
}
# Of mettagrid's default world a policy has 52 features to read, of our lean one 22.
WORDS = [f"resource_{number}" for number in range(15)]
ARENA_52: dict[str, Any] = {**ARENA, "resources": WORDS}
WORKERS = {"0 workers": 0, "1 worker": 1, "2 workers": 2}  # with which we train


def options_of(task: dict[str, Any]) -> dict[str, Any]:
    """All that a program that knows nothing of Engram needs for a task: of the arena, also its world and its words."""
    if task["name"] == "pole":
        return task
    settings = _arena(task)
    spec, config = make_spec(settings), world(settings)
    return {
        **task,
        "world": config.model_dump_json(),
        "window": list(spec.window),
        "features": [[feature.id, feature.normalization] for feature in spec.features],
        "actions": int(spec.single_action_space.n),
    }


def words_of(task: dict[str, Any], workers: int) -> list[str]:
    """The same task as settings of `engram train`."""
    batch = _batch(task)
    env = ["env=gym", "env.id=CartPole-v1", "env.wrappers=[mask_velocity]", "env.reward_scale=0.1"]
    network = ["py_agent=engram.bench.pole_policy:PolePolicy", f"py_agent.hidden_size={task['hidden']}"]
    resources = ",".join(_arena(task).other_resources)
    return [
        *(env if task["name"] == "pole" else ["env=arena", f"env.other_resources=[{resources}]"]),
        *(network if task["name"] == "pole" else ["py_agent=fast"]),
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
        "trainer.checkpoint.interval=1000000",  # as with the others: none while it is measured
    ]


def steps_per_update(task: dict[str, Any]) -> float:
    """How many steps are lived for each step of the optimiser."""
    return _batch(task) / (task["minibatches"] * task["epochs"])


def _batch(task: dict[str, Any]) -> int:
    return task["envs"] * (1 if task["name"] == "pole" else Arena().agents) * task["horizon"]


def _arena(task: dict[str, Any]) -> Arena:
    return Arena(other_resources=task.get("resources", []))
