"""TorchRL: its collector, LSTM module and PPO loss, assembled as in its tutorial on recurrent policies."""

import control
import torch
from meter import Meter, options
from networks import make_network
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import Compose, GymWrapper, InitTracker, SerialEnv, TransformedEnv
from torchrl.modules import LSTMModule, ProbabilisticActor, set_recurrent_mode
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE


def main() -> None:
    task, meter = options(), Meter()
    torch.set_num_threads(task["threads"])
    torch.manual_seed(task["seed"])
    net, hidden = make_network(task), task["hidden"]
    lstm = LSTMModule(input_size=hidden, hidden_size=hidden, num_layers=1, in_key="embed", out_key="memory")
    cartpoles = SerialEnv(task["envs"], lambda: GymWrapper(control.from_options(), categorical_action_encoding=True))
    # Without the primer the memory is silently zero in every step.
    envs = TransformedEnv(cartpoles, Compose(InitTracker(), lstm.make_tensordict_primer()))
    encoder = TensorDictModule(net.encoder, in_keys=["observation"], out_keys=["embed"])
    body = TensorDictSequential(encoder, lstm)
    actor_head = TensorDictModule(net.actor, in_keys=["memory"], out_keys=["logits"])
    critic_head = TensorDictModule(net.critic, in_keys=["memory"], out_keys=["state_value"])
    actor = ProbabilisticActor(
        TensorDictSequential(encoder, lstm, actor_head),
        in_keys=["logits"],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
    )
    critic = TensorDictSequential(body, critic_head)
    advantage = GAE(
        gamma=task["gamma"],
        lmbda=task["gae_lambda"],
        value_network=critic,
        average_gae=True,
        deactivate_vmap=True,  # the recurrent module branches on its data
    )
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=task["clip"],
        entropy_coeff=task["ent_coef"],
        critic_coeff=task["vf_coef"],
        loss_critic_type="l2",
        normalize_advantage=False,
    )
    parameters = {id(p): p for p in loss.parameters()}.values()
    optimizer = torch.optim.Adam(parameters, lr=task["learning_rate"], eps=1e-5)
    batch = task["envs"] * task["horizon"]
    collector = Collector(envs, actor, frames_per_batch=batch, total_frames=-1)
    meter.wrap(cartpoles, "step_and_maybe_reset", "environment")
    meter.wrap(cartpoles, "_step", "environment")
    data = iter(collector)
    while True:
        with meter.phase("inference"):
            rollout = next(data)
        with meter.phase("learning"), set_recurrent_mode(True):
            learn(rollout, advantage, loss, optimizer, task)
        meter.iteration(batch, control.recent_return())


def learn(rollout, advantage, loss, optimizer, task) -> None:
    """`rollout` is [envs, steps]; minibatches are whole environments."""
    with torch.no_grad():
        advantage(rollout)
    size = task["envs"] // task["minibatches"]
    for _ in range(task["epochs"]):
        for chosen in torch.randperm(task["envs"]).split(size):
            losses = loss(rollout[chosen])
            total = sum(losses[name] for name in ("loss_objective", "loss_critic", "loss_entropy"))
            optimizer.zero_grad()
            total.backward()
            nn.utils.clip_grad_norm_(loss.parameters(), task["max_grad_norm"])
            optimizer.step()


if __name__ == "__main__":
    main()
