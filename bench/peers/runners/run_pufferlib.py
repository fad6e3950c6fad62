"""PufferLib's trainer: control tasks by its emulation layer, the arena as one environment of many agents."""

import tempfile

import control
import gymnasium
import numpy as np
import pufferlib
import pufferlib.emulation
import pufferlib.models
import pufferlib.pufferl
import pufferlib.vector
import torch
from meter import Meter, options
from networks import ControlNet, make_network
from torch import nn


class EncoderAndHeads(nn.Module):
    """For PufferLib's own LSTM wrapper, which has one layer."""

    def __init__(self, task: dict, envs) -> None:
        super().__init__()
        space = envs.single_action_space
        self.is_continuous = isinstance(space, gymnasium.spaces.Box)
        actions = space.shape[0] if self.is_continuous else space.n
        size = envs.single_observation_space.shape[0]
        self.net = ControlNet(size, actions, task["hidden"], self.is_continuous)

    def encode_observations(self, observations, state=None):
        return self.net.encode(observations)

    def decode_actions(self, hidden):
        return self.net.decode(hidden)


class SeveralLayers(nn.Module):
    """A policy with several LSTM layers; the trainer sees states as [rows, layers * hidden]."""

    def __init__(self, task: dict) -> None:
        super().__init__()
        self.net = make_network(task)
        self.layers, self.size = self.net.layers, self.net.hidden
        self.hidden_size = self.layers * self.size  # the size that the trainer stores per row
        self.lstm = nn.LSTM(self.size, self.size, self.layers)

    def forward_eval(self, observations, state):
        h, c = (self._unfold(state[name]) for name in ("lstm_h", "lstm_c"))
        hidden, (h, c) = self.lstm(self.net.encode(observations).unsqueeze(0), (h, c))
        state["lstm_h"], state["lstm_c"] = self._fold(h), self._fold(c)
        return self.net.decode(hidden.squeeze(0))

    def forward(self, observations, state):
        rows, steps = observations.shape[:2]
        x = self.net.encode(observations.flatten(0, 1)).view(rows, steps, -1).transpose(0, 1)
        hidden, _ = self.lstm(x)
        logits, values = self.net.decode(hidden.transpose(0, 1).flatten(0, 1))
        return logits, values.view(rows, steps)

    def _unfold(self, state):
        return state.view(-1, self.layers, self.size).transpose(0, 1).contiguous()

    def _fold(self, state):
        return state.transpose(0, 1).reshape(-1, self.hidden_size)


class ArenaEnv(pufferlib.PufferEnv):
    """The arena with all its rows."""

    def __init__(self, task: dict, buf=None, seed=0) -> None:
        from arena import ArenaRows

        self.arena = ArenaRows(task["world"], task["envs"], task["seed"])
        self.num_agents = self.arena.rows
        self.single_observation_space = gymnasium.spaces.Box(0, 255, (self.arena.tokens, 3), np.uint8)
        self.single_action_space = gymnasium.spaces.Discrete(task["actions"])
        super().__init__(buf)
        fields = ("observations", "rewards", "terminals", "truncations")
        self.arena.use(**{name: getattr(self, name) for name in fields})

    @property
    def agents_per_batch(self) -> int:  # read by the trainer
        return self.num_agents

    def reset(self, seed=None):
        self.arena.reset()
        return self.observations, []

    def step(self, actions):
        self.arena.step(actions)
        return self.observations, self.rewards, self.terminals, self.truncations, []

    def close(self) -> None: ...


def make_control(buf=None, seed=0):
    return pufferlib.emulation.GymnasiumPufferEnv(control.from_options(), buf=buf, seed=seed)


def main() -> None:
    task, meter = options(), Meter()
    torch.set_num_threads(task["threads"])
    torch.manual_seed(task["seed"])
    if task["name"] == "cartpole":
        envs = pufferlib.vector.make(make_control, num_envs=task["envs"], backend=pufferlib.vector.Serial)
        policy = pufferlib.models.LSTMWrapper(envs, EncoderAndHeads(task, envs), task["hidden"], task["hidden"])
    else:
        envs = pufferlib.vector.make(ArenaEnv, env_args=[task], backend=pufferlib.PufferEnv)
        policy = SeveralLayers(task)
    batch = envs.num_agents * task["horizon"]
    config = {
        "seed": task["seed"],
        "torch_deterministic": True,
        "cpu_offload": False,
        "device": "cpu",
        "use_rnn": True,
        "optimizer": "adam",
        "anneal_lr": False,
        "precision": "float32",
        "total_timesteps": 10**12,
        "learning_rate": task["learning_rate"],
        "gamma": task["gamma"],
        "gae_lambda": task["gae_lambda"],
        "update_epochs": task["epochs"],
        "clip_coef": task["clip"],
        "vf_coef": task["vf_coef"],
        "vf_clip_coef": 1e9,  # off, as in the other systems
        "max_grad_norm": task["max_grad_norm"],
        "ent_coef": task["ent_coef"],
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_eps": 1e-5,
        "data_dir": tempfile.mkdtemp(),
        "checkpoint_interval": 10**9,
        "batch_size": batch,
        "minibatch_size": batch // task["minibatches"],
        "max_minibatch_size": batch,
        "bptt_horizon": task["horizon"],
        "compile": False,
        "vtrace_rho_clip": 1.0,
        "vtrace_c_clip": 1.0,
        "prio_alpha": 0.0,  # uniform, as in the other systems
        "prio_beta0": 1.0,
        "env": task["name"],
    }
    trainer = pufferlib.pufferl.PuffeRL(config, envs, policy)
    trainer.print_dashboard = lambda *args, **kwargs: None
    meter.wrap(envs, "send", "environment")  # serial environments step here
    meter.wrap(trainer, "evaluate", "inference")
    meter.wrap(trainer, "train", "learning")
    while True:
        trainer.evaluate()
        trainer.train()
        meter.iteration(batch, control.recent_return())


if __name__ == "__main__":
    main()
