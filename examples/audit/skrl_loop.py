"""skrl's recurrent PPO as it is, with the audit's environment and policy: what it learns from is not what it played.

engram audit --loop examples/audit/skrl_loop.py:train
"""

import tempfile

import torch
from skrl.agents.torch.ppo import PPO_CFG, PPO_RNN
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model

SEQUENCE, ROLLOUT, STEPS = 8, 16, 200


class Actor(CategoricalMixin, Model):
    """Recurrent, in the manner of skrl's examples: sequences are split where an episode ends."""

    def __init__(self, policy, rows, **spaces):
        Model.__init__(self, **spaces, device="cpu")
        CategoricalMixin.__init__(self)
        self.policy, self.rows = policy, rows

    def get_specification(self):
        return {"rnn": {"sequence_length": SEQUENCE, "sizes": [(1, self.rows, self.policy.hidden_size)] * 2}}

    def compute(self, inputs, role=""):
        observations, state = inputs["observations"], inputs["rnn"]
        if not self.training:
            logits, _, state = self.policy(observations, tuple(state))
            return logits, {"rnn": list(state)}
        rows = len(observations) // SEQUENCE
        first = tuple(part.reshape(1, rows, SEQUENCE, -1)[:, :, 0].contiguous() for part in state)
        ended = (inputs["terminated"] | inputs["truncated"]).view(rows, SEQUENCE)
        starts = torch.cat([torch.zeros_like(ended[:, :1]), ended[:, :-1]], 1)
        sequences = observations.view(rows, SEQUENCE, -1).transpose(0, 1)
        logits, _, state = self.policy(sequences, first, starts.t().float())
        return logits.transpose(0, 1).flatten(0, 1), {"rnn": list(state)}


class Critic(DeterministicMixin, Model):
    def __init__(self, **spaces):
        Model.__init__(self, **spaces, device="cpu")
        DeterministicMixin.__init__(self)
        self.layer = torch.nn.Linear(spaces["observation_space"].shape[0], 1)

    def compute(self, inputs, role=""):
        return self.layer(inputs["observations"]), {}


def make_agent(env, policy, folder):
    spaces = {"observation_space": env.single_observation_space, "action_space": env.single_action_space}
    cfg = PPO_CFG(rollouts=ROLLOUT, learning_epochs=1, mini_batches=1)
    cfg.experiment.directory, cfg.experiment.write_interval, cfg.experiment.checkpoint_interval = folder, 0, 0
    memory = RandomMemory(memory_size=ROLLOUT, num_envs=env.num_envs, device="cpu")
    models = {"policy": Actor(policy, env.num_envs, **spaces), "value": Critic(**spaces)}
    agent = PPO_RNN(models=models, memory=memory, cfg=cfg, device="cpu", **spaces)
    agent.init()
    agent.enable_training_mode(True)
    return agent


def interact(agent, env, observation, time):
    """One step as skrl's trainers take it; returns the next observation."""
    action, _ = agent.act(observation, None, **time)
    following, reward, terminated, truncated, _ = env.step(action[:, 0].numpy())
    following = torch.as_tensor(following)
    reward, terminated, truncated = (torch.as_tensor(x).view(-1, 1) for x in (reward, terminated, truncated))
    transition = {"observations": observation, "actions": action, "rewards": reward, "next_observations": following}
    ends = {"terminated": terminated, "truncated": truncated}
    agent.record_transition(**transition, **ends, states=None, next_states=None, infos={}, **time)
    return following


def train(env, policy):
    with tempfile.TemporaryDirectory() as folder:
        agent = make_agent(env, policy, folder)
        observation = torch.as_tensor(env.reset()[0])
        for step in range(STEPS):
            time = {"timestep": step, "timesteps": STEPS}
            agent.pre_interaction(**time)
            with torch.no_grad():
                observation = interact(agent, env, observation, time)
            agent.post_interaction(**time)
