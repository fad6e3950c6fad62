"""An agent with weights set by hand that recalls a cue perfectly."""

import torch

from engram.agent.metta_agent import MettaAgent
from engram.agent.policies.lstm_wrapper import LSTMWrapper
from engram.env.registry import make_spec
from engram.env.settings import Recall

ENV = Recall(cues=3, delay=4)


class Remembering(LSTMWrapper):
    """One unit of memory for each cue: written when a cue is shown, kept otherwise. It names the cue it remembers."""

    def __init__(self, env: object) -> None:
        super().__init__(env, input_size=ENV.cues + 2, hidden_size=ENV.cues, num_layers=1, core="mingru")
        own = torch.eye(ENV.cues)
        with torch.no_grad():
            weight, bias = self.core.weight_ih_l0, self.core.bias_ih_l0
            weight.zero_()
            weight[: ENV.cues, : ENV.cues] = 40  # z: open for any cue
            weight[ENV.cues :, : ENV.cues] = 20 * own - 10  # n: which one
            bias.zero_()
            bias[: ENV.cues] = -20  # z: closed without a cue

    def encode_observations(self, observations: torch.Tensor) -> torch.Tensor:
        return observations

    def decode_actions(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return 10 * hidden, hidden.sum(-1)


def remembering() -> MettaAgent:
    spec = make_spec(ENV)
    return MettaAgent(spec, Remembering(spec)).eval()
