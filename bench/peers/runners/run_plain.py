"""A plain PPO loop in one file.

On CartPole it works like CleanRL: learning runs through a segment step by step and resets rows where an episode starts.
In the arena it works like the trainer that Engram replaced: one call of nn.LSTM over the segment, from zero, with no
resets inside, and an actor that multiplies its hidden layer once per action.
"""

import control
import numpy as np
import torch
from meter import Meter, options
from networks import make_network
from torch import nn


class PlainPolicy(nn.Module):
    def __init__(self, task: dict) -> None:
        super().__init__()
        self.net, self.exact = make_network(task, repeated=not task["exact"]), task["exact"]
        self.lstm = nn.LSTM(self.net.hidden, self.net.hidden, self.net.layers)

    def zeros(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(torch.zeros(2, self.net.layers, rows, self.net.hidden))

    def forward(self, observations, state, starts):
        """Takes [T, B, …]; returns logits and values [T * B, …] and the state."""
        steps, rows = starts.shape
        x = self.net.encode(observations.flatten(0, 1)).view(steps, rows, -1)
        if not self.exact:
            hidden, state = self.lstm(x, state)
            return *self.net.decode(hidden.flatten(0, 1)), state
        outputs = []
        for t in range(steps):
            keep = (~starts[t]).float().view(1, -1, 1)
            output, state = self.lstm(x[t : t + 1], (state[0] * keep, state[1] * keep))
            outputs.append(output)
        return *self.net.decode(torch.cat(outputs).flatten(0, 1)), state


def main() -> None:
    task, meter = options(), Meter()
    torch.set_num_threads(task["threads"])
    torch.manual_seed(task["seed"])
    world = make_rows(task)
    policy = PlainPolicy(task)
    optimizer = torch.optim.Adam(policy.parameters(), lr=task["learning_rate"], eps=1e-5)
    rows, steps = len(world.rewards), task["horizon"]
    fields = {
        "observations": torch.zeros(steps, rows, *world.observations.shape[1:], dtype=_dtype(world.observations)),
        "starts": torch.zeros(steps, rows, dtype=torch.bool),
        "actions": torch.zeros(steps, rows, dtype=torch.long),
        **{name: torch.zeros(steps, rows) for name in ("log_probs", "values", "rewards", "ends")},
    }
    state = policy.zeros(rows)
    while True:
        first = state if policy.exact else policy.zeros(rows)
        state, last_value = rollout(policy, world, fields, first, meter)
        with meter.phase("learning"):
            learn(policy, optimizer, fields, first, last_value, task)
        meter.iteration(rows * steps, control.recent_return())


def make_rows(task: dict):
    if task["name"] == "cartpole":
        return control.Rows(task["envs"], task["seed"])
    from arena import ArenaRows  # needs mettagrid, CartPole does not

    rows = ArenaRows(task["world"], task["envs"], task["seed"])
    rows.reset()
    return rows


@torch.no_grad()
def rollout(policy, world, fields, state, meter):
    steps = fields["rewards"].shape[0]
    for t in range(steps):
        with meter.phase("inference"):
            observations, starts = torch.from_numpy(world.observations).clone(), torch.from_numpy(world.starts).clone()
            logits, values, state = policy(observations.unsqueeze(0), state, starts.unsqueeze(0))
            distribution = torch.distributions.Categorical(logits=logits)
            actions = distribution.sample()
            fields["observations"][t], fields["starts"][t] = observations, starts
            fields["actions"][t], fields["values"][t] = actions, values.flatten()
            fields["log_probs"][t] = distribution.log_prob(actions)
        with meter.phase("environment"):
            world.step(actions.numpy())
        fields["rewards"][t], fields["ends"][t] = torch.from_numpy(world.rewards), torch.from_numpy(world.starts)
    with meter.phase("inference"):
        observations, starts = torch.from_numpy(world.observations), torch.from_numpy(world.starts)
        _, last_value, _ = policy(observations.unsqueeze(0), state, starts.unsqueeze(0))
    return state, last_value.flatten()


def learn(policy, optimizer, fields, first, last_value, task) -> None:
    advantages = gae(fields, last_value, task["gamma"], task["gae_lambda"])
    returns = advantages + fields["values"]
    rows = advantages.shape[1]
    size = rows // task["minibatches"]
    for _ in range(task["epochs"]):
        for chosen in torch.randperm(rows).split(size):
            batch = {name: field[:, chosen] for name, field in fields.items()}
            start = tuple(memory[:, chosen] for memory in first)
            logits, values, _ = policy(batch["observations"], start, batch["starts"])
            distribution = torch.distributions.Categorical(logits=logits)
            log_ratio = distribution.log_prob(batch["actions"].flatten()) - batch["log_probs"].flatten()
            ratio, clip = log_ratio.exp(), task["clip"]
            advantage = advantages[:, chosen].flatten()
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            policy_loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(1 - clip, 1 + clip)).mean()
            value_loss = 0.5 * (values.flatten() - returns[:, chosen].flatten()).square().mean()
            entropy = distribution.entropy().mean()
            loss = policy_loss + task["vf_coef"] * value_loss - task["ent_coef"] * entropy
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), task["max_grad_norm"])
            optimizer.step()


def gae(fields, last_value, gamma: float, gae_lambda: float) -> torch.Tensor:
    values, advantages = fields["values"], torch.zeros_like(fields["values"])
    next_advantage, next_value = torch.zeros_like(last_value), last_value
    for t in reversed(range(len(values))):
        alive = 1 - fields["ends"][t]
        delta = fields["rewards"][t] + gamma * next_value * alive - values[t]
        next_advantage = advantages[t] = delta + gamma * gae_lambda * alive * next_advantage
        next_value = values[t]
    return advantages


def _dtype(array: np.ndarray) -> torch.dtype:
    return torch.from_numpy(array[:1]).dtype


if __name__ == "__main__":
    main()
