"""sb3-contrib's RecurrentPPO: settings of rl-zoo for control tasks without velocities, its own defaults for others."""

import time

import control
import torch
from meter import Meter, options
from run_sb3_contrib import MeterCallback
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch import nn

INTERVAL = 2048  # steps between evaluations, as in Engram's runs
SMALL = {
    "ortho_init": False,
    "activation_fn": nn.ReLU,
    "lstm_hidden_size": 64,
    "enable_critic_lstm": True,
    "net_arch": {"pi": [64], "vf": [64]},
}
ZOO = {  # environments in parallel, and the arguments of RecurrentPPO; rates and clips are functions of what remains
    "CartPole-v1": (
        8,
        {
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "ent_coef": 0.0,
            "learning_rate": lambda remaining: 0.001 * remaining,
            "clip_range": lambda remaining: 0.2 * remaining,
            "policy_kwargs": SMALL,
        },
    ),
    "Pendulum-v1": (
        4,
        {
            "n_steps": 1024,
            "gae_lambda": 0.95,
            "gamma": 0.9,
            "n_epochs": 10,
            "ent_coef": 0.0,
            "learning_rate": 0.001,
            "clip_range": 0.2,
            "use_sde": True,
            "sde_sample_freq": 4,
            "policy_kwargs": SMALL,
        },
    ),
    "MountainCarContinuous-v0": (
        8,
        {
            "n_steps": 1024,
            "batch_size": 256,
            "gamma": 0.9999,
            "learning_rate": 7.77e-05,
            "ent_coef": 0.00429,
            "clip_range": 0.1,
            "n_epochs": 10,
            "gae_lambda": 0.9,
            "max_grad_norm": 5,
            "vf_coef": 0.19,
            "use_sde": True,
            "sde_sample_freq": 8,
            "policy_kwargs": {
                "log_std_init": 0.0,
                "ortho_init": False,
                "lstm_hidden_size": 32,
                "enable_critic_lstm": True,
                "net_arch": {"pi": [64], "vf": [64]},
            },
        },
    ),
}
DEFAULTS = (8, {"n_steps": 128})


class ZooCallback(MeterCallback):
    """Evaluates greedily every 2048 steps or more; the clock stands still meanwhile."""

    def __init__(self, meter: Meter, steps: int, envs: VecNormalize, episodes: int) -> None:
        super().__init__(meter, steps, control.recent_return)
        self.envs, self.episodes, self.next_steps = envs, episodes, INTERVAL

    def _on_rollout_start(self) -> None:
        if self.started:
            self._report()
        self.started = True

    def _on_training_end(self) -> None:
        self._report()

    def _report(self) -> None:
        greedy, began = None, time.perf_counter()
        if self.num_timesteps >= self.next_steps:
            self.next_steps = self.num_timesteps + INTERVAL
            greedy = greedy_return(self.model, self.envs, self.episodes)
        self.meter.exclude(time.perf_counter() - began)
        self.meter.iteration(self.steps, control.recent_return(), greedy)


def greedy_return(model: RecurrentPPO, envs: VecNormalize, episodes: int) -> float:
    """With the statistics of observations that training has now, which do not change here."""
    name = control.ENV
    number = min(episodes, 8)
    rows = VecNormalize(
        DummyVecEnv([lambda: control.VectorTask(name, counted=False)] * number), training=False, norm_reward=False
    )
    rows.obs_rms = envs.obs_rms
    return float(evaluate_policy(model, rows, episodes, deterministic=True, warn=False)[0])


def main() -> None:
    task, meter = options(), Meter()
    name = task["env"]
    number, settings = ZOO.get(name, DEFAULTS)
    torch.set_num_threads(task["threads"])
    envs = VecNormalize(DummyVecEnv([lambda: control.VectorTask(name)] * number), gamma=settings.get("gamma", 0.99))
    model = RecurrentPPO("MlpLstmPolicy", envs, seed=task["seed"], device="cpu", **settings)
    torch.set_num_threads(task["threads"])
    callback = ZooCallback(meter, number * settings["n_steps"], envs, task["recent"])
    model.learn(task["steps"], callback=callback)
    meter.end(greedy=greedy_return(model, envs, task["evaluate"]))


if __name__ == "__main__":
    main()
