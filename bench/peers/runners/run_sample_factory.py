"""Sample Factory's APPO, asynchronous with two workers, as its authors intend."""

import sys
import tempfile

import control
import numpy as np
from meter import Meter, options
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

WORKERS = 2


class MeterObserver(AlgoObserver):
    def __init__(self, meter: Meter) -> None:
        self.meter, self.steps = meter, 0

    def on_training_step(self, runner, training_iteration_since_resume) -> None:
        steps = runner.total_env_steps_since_resume or 0
        new_steps, self.steps = steps - self.steps, steps
        rewards = runner.policy_avg_stats.get("reward", [[]])[0]  # scaled
        self.meter.iteration(new_steps, float(np.mean(rewards)) / control.REWARD_SCALE if len(rewards) else None)


def make_env(name, cfg=None, env_config=None, render_mode=None):
    return control.from_options()


def main() -> None:
    task, meter = options(), Meter()
    register_env("cartpole", make_env)
    batch = task["envs"] * task["horizon"]
    settings = {
        "algo": "APPO",
        "env": "cartpole",
        "experiment": "cartpole",
        "train_dir": tempfile.mkdtemp(),
        "device": "cpu",
        "seed": task["seed"],
        "num_workers": WORKERS,
        "num_envs_per_worker": task["envs"] // WORKERS,
        "worker_num_splits": 2,
        "rollout": task["horizon"],
        "recurrence": task["horizon"],
        "batch_size": batch // task["minibatches"],
        "num_batches_per_epoch": task["minibatches"],
        "num_epochs": task["epochs"],
        "use_rnn": True,
        "rnn_type": "lstm",
        "rnn_size": task["hidden"],
        "rnn_num_layers": 1,
        "nonlinearity": "relu",
        "normalize_input": False,
        "normalize_returns": False,
        "learning_rate": task["learning_rate"],
        "gamma": task["gamma"],
        "gae_lambda": task["gae_lambda"],
        "ppo_clip_ratio": task["clip"],
        "exploration_loss_coeff": task["ent_coef"],
        "value_loss_coeff": task["vf_coef"],
        "max_grad_norm": task["max_grad_norm"],
        "with_vtrace": False,
        "train_for_env_steps": 10**12,
        "save_every_sec": 10**6,
        "set_workers_cpu_affinity": False,
    }
    words = [f"--{name}={value}" for name, value in settings.items()]
    words += ["--encoder_mlp_layers", str(task["hidden"]), str(task["hidden"])]
    parser, _ = parse_sf_args(argv=words)
    _, runner = make_runner(parse_full_cfg(parser, argv=words))
    runner.register_observer(MeterObserver(meter))
    runner.init()
    sys.exit(runner.run())


if __name__ == "__main__":
    main()
