"""sb3-contrib's RecurrentPPO with the settings that rl-zoo publishes for control tasks without velocities."""

import control
import torch
from meter import Meter, options
from run_sb3_contrib import MeterCallback
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch import nn

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


class ZooCallback(MeterCallback):
    def _on_training_end(self) -> None:
        self.meter.iteration(self.steps, self.recent_return())


def main() -> None:
    task, meter = options(), Meter()
    name = task["env"]
    number, settings = ZOO[name]
    torch.set_num_threads(task["threads"])
    envs = VecNormalize(DummyVecEnv([lambda: control.MaskedControl(name)] * number), gamma=settings["gamma"])
    model = RecurrentPPO("MlpLstmPolicy", envs, seed=task["seed"], device="cpu", **settings)
    torch.set_num_threads(task["threads"])
    model.learn(task["steps"], callback=ZooCallback(meter, number * settings["n_steps"], control.recent_return))
    envs.training, envs.norm_reward = False, False
    greedy, _ = evaluate_policy(model, envs, task["evaluate"], deterministic=True, warn=False)
    meter.end(greedy=float(greedy))


if __name__ == "__main__":
    main()
