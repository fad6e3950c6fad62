"""rl_games' PPO with a recurrent layer."""

import tempfile

import control
import gymnasium
import torch
from meter import Meter, options
from rl_games.algos_torch.a2c_continuous import A2CAgent
from rl_games.algos_torch.a2c_discrete import DiscreteA2CAgent
from rl_games.common.algo_observer import AlgoObserver
from rl_games.common.ivecenv import IVecEnv
from rl_games.torch_runner import Runner


class ControlVecEnv(IVecEnv):
    def __init__(self, envs: int, seed: int) -> None:
        self.rows = control.Rows(envs, seed)

    def step(self, actions):
        self.rows.step(actions)
        return self.rows.observations.copy(), self.rows.rewards.copy(), self.rows.starts.copy(), {}

    def reset(self):
        return self.rows.observations.copy()

    def get_env_info(self):
        return {"observation_space": self.rows.observation_space, "action_space": self.rows.action_space}


class MeterObserver(AlgoObserver):
    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self.meter, self.frame = meter, 0

    def after_print_stats(self, frame, epoch_num, total_time) -> None:
        # With discrete actions this is called twice per iteration; the second call has no new frames.
        if frame > self.frame:
            steps, self.frame = frame - self.frame, frame
            self.meter.iteration(steps, control.recent_return())


def config(task: dict, envs: ControlVecEnv) -> dict:
    return {
        "name": "cartpole",
        "env_name": "cartpole",
        "vec_env": envs,
        "env_info": envs.get_env_info(),
        "num_actors": task["envs"],
        "reward_shaper": {"scale_value": 1.0},
        "normalize_advantage": True,
        "normalize_input": task.get("normalize", False),
        "normalize_value": task.get("normalize", False),
        "gamma": task["gamma"],
        "tau": task["gae_lambda"],
        "learning_rate": task["learning_rate"],
        "lr_schedule": None,
        "grad_norm": task["max_grad_norm"],
        "truncate_grads": True,
        "entropy_coef": task["ent_coef"],
        "critic_coef": 2 * task["vf_coef"],  # rl_games halves the critic loss
        "clip_value": False,
        "bounds_loss_coef": 0.0001,  # of continuous actions alone, as in its examples
        "e_clip": task["clip"],
        "ppo": True,
        "horizon_length": task["horizon"],
        "seq_length": task["horizon"],
        "minibatch_size": task["envs"] * task["horizon"] // task["minibatches"],
        "mini_epochs": task["epochs"],
        "max_epochs": 10**9,
        "torch_compile": task.get("compile", True),
        "device": "cpu",
        "device_name": "cpu",
        "print_stats": False,
        "save_best_after": 10**9,
        "train_dir": tempfile.mkdtemp(),
    }


GAUSSIAN = {
    "mu_activation": "None",
    "sigma_activation": "None",
    "mu_init": {"name": "default"},
    "sigma_init": {"name": "const_initializer", "val": 0},
    "fixed_sigma": True,
}


def network(hidden: int, continuous: bool) -> dict:
    return {
        "name": "actor_critic",
        "separate": False,
        "space": {"continuous": GAUSSIAN} if continuous else {"discrete": None},
        "mlp": {
            "units": [hidden, hidden],
            "activation": "relu",
            "initializer": {"name": "default"},
            "regularizer": {"name": "None"},
        },
        "rnn": {"name": "lstm", "units": hidden, "layers": 1, "before_mlp": False},
    }


def main() -> None:
    task, meter = options(), Meter()
    torch.set_num_threads(task["threads"])
    envs = ControlVecEnv(task["envs"], task["seed"])
    continuous = isinstance(envs.rows.action_space, gymnasium.spaces.Box)
    params = {
        "seed": task["seed"],
        "algo": {"name": "a2c_continuous" if continuous else "a2c_discrete"},
        "model": {"name": "continuous_a2c_logstd" if continuous else "discrete_a2c"},
        "network": network(task["hidden"], continuous),
        "config": config(task, envs),
    }
    meter.wrap(envs, "step", "environment")
    agent = A2CAgent if continuous else DiscreteA2CAgent
    meter.wrap(agent, "play_steps_rnn", "inference")
    meter.wrap(agent, "train_epoch", "learning")  # rollout and environment are nested phases
    runner = Runner(algo_observer=MeterObserver(meter))
    runner.load({"params": params})
    torch.set_num_threads(task["threads"])
    runner.run({"train": True, "play": False})


if __name__ == "__main__":
    main()
