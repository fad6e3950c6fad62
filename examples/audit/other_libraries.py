"""Recurrent networks of other libraries as they are installed, each called the way its own training loop calls it.

engram audit examples/audit/other_libraries.py:TorchRL env=recall
engram audit examples/audit/other_libraries.py:RLGames env=recall
engram audit examples/audit/other_libraries.py:Tianshou env=recall
engram audit examples/audit/other_libraries.py:RLlib env=recall
"""

import torch
from torch import nn

SIZE = 32


class TorchRL(nn.Module):
    """TorchRL's LSTMModule. Its loop flags starts with InitTracker and zeroes the state there with TensorDictPrimer."""

    def __init__(self, env):
        super().__init__()
        from torchrl.modules import LSTMModule

        size = env.single_observation_space.shape[0]
        self.core = LSTMModule(input_size=size, hidden_size=SIZE, in_key="observation", out_key="features")
        self.actor, self.critic = nn.Linear(SIZE, int(env.single_action_space.n)), nn.Linear(SIZE, 1)

    def initial_state(self, rows):
        zeros = self.actor.weight.new_zeros(rows, 1, SIZE)
        return zeros, zeros

    def forward(self, obs, state, starts):  # [B, T, ...]
        from tensordict import TensorDict
        from torchrl.modules import set_recurrent_mode

        rows, steps = starts.shape
        fields = {"observation": obs, "is_init": starts.unsqueeze(-1)}
        for name, part in zip(("recurrent_state_h", "recurrent_state_c"), state, strict=True):
            part = torch.where(starts[:, 0].view(-1, 1, 1), torch.zeros_like(part), part)
            later = torch.zeros_like(part).unsqueeze(1).expand(-1, steps - 1, -1, -1)  # read at episode starts only
            fields[name] = torch.cat([part.unsqueeze(1), later], 1)
        td = TensorDict(fields, [rows, steps])
        with set_recurrent_mode(steps > 1):
            td = self.core(td)
        state = tuple(td["next", f"recurrent_state_{name}"][:, -1] for name in ("h", "c"))
        return self.actor(td["features"]), self.critic(td["features"]).squeeze(-1), state


class RLGames(nn.Module):
    """rl_games' A2C network with an LSTM. Its loop zeroes the state of rows that are done; learning gets `dones`."""

    def __init__(self, env):
        super().__init__()
        from rl_games.algos_torch.network_builder import A2CBuilder

        plain = {"name": "default"}
        builder = A2CBuilder()
        builder.load(
            {
                "separate": False,
                "space": {"discrete": None},
                "mlp": {"units": [SIZE], "activation": "elu", "initializer": plain, "regularizer": {"name": "None"}},
                "rnn": {"name": "lstm", "units": SIZE, "layers": 1},
            }
        )
        shape, actions = env.single_observation_space.shape, int(env.single_action_space.n)
        self.network = builder.build("a2c", actions_num=actions, input_shape=shape, num_seqs=1, value_size=1)

    def initial_state(self, rows):
        zeros = next(self.parameters()).new_zeros(1, rows, SIZE)
        return zeros, zeros

    def forward(self, obs, state, starts):  # [B, T, ...]
        rows, steps = starts.shape
        given = {"obs": obs.flatten(0, 1), "rnn_states": state, "seq_length": steps}
        if steps == 1:
            given["rnn_states"] = tuple(torch.where(starts.view(1, -1, 1), 0.0, part) for part in state)
        else:
            given["dones"] = starts.flatten().to(obs.dtype)
        logits, value, state = self.network(given)
        return logits.view(rows, steps, -1), value.view(rows, steps), state


class Tianshou(nn.Module):
    """Tianshou's Recurrent. Its collector carries the state and zeroes it at ends; learning stacks the last frames.

    A buffer with `stack_num` frames makes learning recurrent: each step is judged from the frames of its episode
    that precede it, beginning with an empty state.
    """

    stack_num = 4

    def __init__(self, env):
        super().__init__()
        from tianshou.utils.net.common import Recurrent

        shape, actions = env.single_observation_space.shape, int(env.single_action_space.n)
        self.network = Recurrent(layer_num=1, state_shape=shape, action_shape=actions + 1, hidden_layer_size=SIZE)

    def initial_state(self, rows):
        zeros = next(self.parameters()).new_zeros(rows, 1, SIZE)
        return {"hidden": zeros, "cell": zeros}

    def forward(self, obs, state, starts):  # [B, T, ...]
        if obs.shape[1] == 1:
            clear = starts.view(-1, 1, 1)
            state = {name: torch.where(clear, torch.zeros_like(part), part) for name, part in state.items()}
            outputs, state = self.network(obs[:, 0], state)
            return outputs[:, :-1], outputs[:, -1:], {name: state[name] for name in ("hidden", "cell")}
        outputs = torch.stack([self.network(self._frames(obs, starts, step))[0] for step in range(obs.shape[1])], 1)
        return outputs[..., :-1], outputs[..., -1], state

    def _frames(self, obs, starts, step):
        """The last frames of each row's episode; the first one fills up, as in Tianshou's buffer."""
        episode = starts.long().cumsum(1)
        index = torch.full((len(obs),), step)
        frames = []
        for _ in range(self.stack_num):
            frames.append(obs[torch.arange(len(obs)), index])
            before = (index - 1).clamp(min=0)
            same = episode.gather(1, before.view(-1, 1)) == episode.gather(1, index.view(-1, 1))
            index = torch.where(same.squeeze(1), before, index)
        return torch.stack(frames[::-1], 1)


class PufferLib2(nn.Module):
    """The LSTMWrapper of PufferLib 1 and 2. Their loop carries the state on and never clears it, not even at an end.

    Learning begins with an empty state, and carries it over to the next minibatch, which holds other steps.
    """

    def __init__(self, env):
        super().__init__()
        from pufferlib.models import Default, LSTMWrapper

        self.network = LSTMWrapper(env, Default(env, hidden_size=SIZE), SIZE, SIZE)

    def initial_state(self, rows):
        zeros = next(self.parameters()).new_zeros(1, rows, SIZE)
        return zeros, zeros

    def forward(self, obs, state, starts):  # [B, T, ...]
        rows, steps = starts.shape
        logits, value, state = self.network(obs, state if steps == 1 else None)
        logits = logits if isinstance(logits, torch.Tensor) else torch.cat(list(logits), -1)
        return logits.reshape(rows, steps, -1), value.reshape(rows, steps), state


class RLlib(nn.Module):
    """RLlib's default PPO module with an LSTM. Its connectors split sequences where an episode ends.

    Learning begins each piece from the state that acting stored for its first step.
    """

    def __init__(self, env):
        super().__init__()
        from ray.rllib.algorithms.ppo.ppo_catalog import PPOCatalog
        from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
        from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

        self.network = DefaultPPOTorchRLModule(
            observation_space=env.single_observation_space,
            action_space=env.single_action_space,
            model_config=DefaultModelConfig(use_lstm=True, lstm_cell_size=SIZE, fcnet_hiddens=[SIZE]),
            catalog_class=PPOCatalog,
        )

    def initial_state(self, rows):
        zeros = next(self.parameters()).new_zeros(rows, 1, SIZE)
        return {"h": zeros, "c": zeros}

    def forward(self, obs, state):  # [B, T, ...]
        batch = {"obs": obs, "state_in": state}
        output = self.network.forward_train(batch)
        return output["action_dist_inputs"], self.network.compute_values(batch), output["state_out"]
