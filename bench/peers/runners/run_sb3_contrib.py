"""sb3-contrib's RecurrentPPO."""

from collections.abc import Callable

import control
import torch
from meter import Meter, options
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import nn


class Encoder(BaseFeaturesExtractor):
    """Two layers before the LSTM; SB3 by default puts them after it."""

    def __init__(self, space, hidden: int) -> None:
        super().__init__(space, hidden)
        self.layers = nn.Sequential(nn.Linear(space.shape[0], hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())

    def forward(self, observations):
        return self.layers(observations)


class MeterCallback(BaseCallback):
    """Reports every update; `recent_return` gives the mean return of recent episodes."""

    def __init__(self, meter: Meter, steps: int, recent_return: Callable[[], float | None]) -> None:
        super().__init__()
        self.meter, self.steps, self.recent_return, self.started = meter, steps, recent_return, False

    def _on_rollout_start(self) -> None:
        if self.started:  # the start of a rollout is the end of the previous update
            self.meter.iteration(self.steps, self.recent_return())
        self.started = True

    def _on_step(self) -> bool:
        return True


def main() -> None:
    task, meter = options(), Meter()
    torch.set_num_threads(task["threads"])
    envs = DummyVecEnv([control.from_options] * task["envs"])
    batch = task["envs"] * task["horizon"]
    model = RecurrentPPO(
        "MlpLstmPolicy",
        envs,
        learning_rate=task["learning_rate"],
        n_steps=task["horizon"],
        batch_size=batch // task["minibatches"],
        n_epochs=task["epochs"],
        gamma=task["gamma"],
        gae_lambda=task["gae_lambda"],
        clip_range=task["clip"],
        ent_coef=task["ent_coef"],
        vf_coef=task["vf_coef"],
        max_grad_norm=task["max_grad_norm"],
        seed=task["seed"],
        device="cpu",
        policy_kwargs={
            "features_extractor_class": Encoder,
            "features_extractor_kwargs": {"hidden": task["hidden"]},
            "net_arch": [],
            "lstm_hidden_size": task["hidden"],
            "n_lstm_layers": 1,
            "shared_lstm": True,
            "enable_critic_lstm": False,
        },
    )
    torch.set_num_threads(task["threads"])
    meter.wrap(model.env, "step", "environment")
    meter.wrap(model, "collect_rollouts", "inference")
    meter.wrap(model, "train", "learning")
    model.learn(total_timesteps=10**12, callback=MeterCallback(meter, batch, control.recent_return))


if __name__ == "__main__":
    main()
