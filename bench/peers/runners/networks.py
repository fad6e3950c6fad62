"""The networks of the comparison in plain PyTorch: encoder and heads, without the recurrent layer between them."""

# N rows, M tokens, K features, A actions

import torch
from torch import Tensor, nn
from torch.distributions import Normal


class ControlNet(nn.Module):
    """Two linear layers before the LSTM, and one per head after it. Continuous actions are normally distributed."""

    layers = 1

    def __init__(self, size: int = 4, actions: int = 2, hidden: int = 128, continuous: bool = False) -> None:
        super().__init__()
        self.hidden, self.log_std = hidden, nn.Parameter(torch.zeros(actions)) if continuous else None
        self.encoder = nn.Sequential(nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.actor, self.critic = nn.Linear(hidden, actions), nn.Linear(hidden, 1)
        nn.init.orthogonal_(self.actor.weight, 0.01)

    def encode(self, observations: Tensor) -> Tensor:
        return self.encoder(observations.float())

    def decode(self, hidden: Tensor) -> tuple[Tensor | Normal, Tensor]:
        output = self.actor(hidden)
        return output if self.log_std is None else Normal(output, self.log_std.exp()), self.critic(hidden)


class FastNet(nn.Module):
    """Tokens scattered into a box, two convolutions, two linear layers; a wide critic, and a bilinear actor.

    The actor's hidden layer is multiplied once per row, or with `repeated` once per action, with the same result.
    """

    layers = 2

    def __init__(
        self, window: list[int], features: list[list[float]], actions: int, hidden: int = 128, repeated: bool = False
    ) -> None:
        super().__init__()
        self.hidden, (self.height, self.width), self.count = hidden, window, len(features)
        self.repeated = repeated
        location = torch.arange(256)
        row, column = location >> 4, location & 15
        cells = torch.where((row < self.height) & (column < self.width), row * self.width + column, -1)
        cells[0xFE] = (self.height // 2) * self.width + self.width // 2
        cells[0xFF] = -1
        channels, norms = torch.full((256,), -1), torch.ones(256)
        for channel, (feature, norm) in enumerate(features):
            channels[int(feature)], norms[int(feature)] = channel, norm
        for name, table in (("cells", cells), ("channels", channels), ("norms", norms)):
            self.register_buffer(name, table)
        self.conv1, self.conv2 = nn.Conv2d(self.count, 64, 5, 3), nn.Conv2d(64, 64, 3, 1)
        self.linear1, self.linear2 = nn.Linear(64, 128), nn.Linear(128, hidden)
        self.critic = nn.Sequential(nn.Linear(hidden, 1024), nn.Tanh(), nn.Linear(1024, 1))
        self.actor, self.query = nn.Linear(hidden, 512), nn.Linear(512, 16, bias=False)
        self.embedding, self.bias = nn.Parameter(0.1 * torch.randn(actions, 16)), nn.Parameter(torch.zeros(1))

    def encode(self, tokens: Tensor) -> Tensor:
        x = self.conv1(self._box(tokens)).relu()
        x = self.conv2(x).relu().flatten(1)
        return self.linear2(self.linear1(x).relu()).relu()

    def decode(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        actor = self.actor(hidden).relu()
        if self.repeated:
            query = self.query(actor.unsqueeze(1).repeat(1, len(self.embedding), 1)).tanh()
            return (query * self.embedding).sum(-1) + self.bias, self.critic(hidden)
        return self.query(actor).tanh() @ self.embedding.T + self.bias, self.critic(hidden)

    def _box(self, tokens_NM3: Tensor) -> Tensor:
        location, feature, value = tokens_NM3.long().unbind(-1)
        rows, cells = tokens_NM3.shape[0], self.height * self.width
        index = (self.channels[feature] * cells + self.cells[location]) + (
            torch.arange(rows).unsqueeze(1) * self.count * cells
        )
        valid = (self.cells[location] >= 0) & (self.channels[feature] >= 0)
        box = torch.zeros(rows * self.count * cells + 1)
        box[torch.where(valid, index, rows * self.count * cells)] = value.float() / self.norms[feature]
        return box[:-1].view(rows, self.count, self.height, self.width)


def make_network(task: dict, repeated: bool = False) -> ControlNet | FastNet:
    if task["name"] == "cartpole":
        return ControlNet(hidden=task["hidden"])
    return FastNet(task["window"], task["features"], task["actions"], task["hidden"], repeated)
