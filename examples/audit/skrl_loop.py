"""skrl's recurrent PPO as it is, with the audit's environment and policy: what it learns from is not what it played.

engram audit --loop examples/audit/skrl_loop.py:train
"""

import tempfile

import torch

SEQUENCE = 8


def train(env, policy):
    from skrl.agents.torch.ppo import PPO_CFG, PPO_RNN
    from skrl.memories.torch import RandomMemory
    from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model

    spaces = {"observation_space": env.single_observation_space, "action_space": env.single_action_space}

    class Actor(CategoricalMixin, Model):
        """Recurrent, in the manner of skrl's examples: sequences are split where an episode ends."""

        def __init__(self):
            Model.__init__(self, **spaces, device="cpu")
            CategoricalMixin.__init__(self)
            self.policy = policy

        def get_specification(self):
            sizes = [(1, env.num_envs, policy.hidden_size)] * 2
            return {"rnn": {"sequence_length": SEQUENCE, "sizes": sizes}}

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
        def __init__(self):
            Model.__init__(self, **spaces, device="cpu")
            DeterministicMixin.__init__(self)
            self.layer = torch.nn.Linear(env.single_observation_space.shape[0], 1)

        def compute(self, inputs, role=""):
            return self.layer(inputs["observations"]), {}

    with tempfile.TemporaryDirectory() as folder:
        cfg = PPO_CFG(rollouts=16, learning_epochs=1, mini_batches=1)
        cfg.experiment.directory, cfg.experiment.write_interval, cfg.experiment.checkpoint_interval = folder, 0, 0
        memory = RandomMemory(memory_size=16, num_envs=env.num_envs, device="cpu")
        models = {"policy": Actor(), "value": Critic()}
        agent = PPO_RNN(models=models, memory=memory, cfg=cfg, device="cpu", **spaces)
        agent.init()
        agent.enable_training_mode(True)
        observation = torch.as_tensor(env.reset()[0])
        for step in range(200):
            agent.pre_interaction(timestep=step, timesteps=200)
            with torch.no_grad():
                action, _ = agent.act(observation, None, timestep=step, timesteps=200)
                following, reward, terminated, truncated, _ = env.step(action[:, 0].numpy())
                following = torch.as_tensor(following)
                agent.record_transition(
                    observations=observation,
                    states=None,
                    actions=action,
                    rewards=torch.as_tensor(reward).view(-1, 1),
                    next_observations=following,
                    next_states=None,
                    terminated=torch.as_tensor(terminated).view(-1, 1),
                    truncated=torch.as_tensor(truncated).view(-1, 1),
                    infos={},
                    timestep=step,
                    timesteps=200,
                )
            agent.post_interaction(timestep=step, timesteps=200)
            observation = following
