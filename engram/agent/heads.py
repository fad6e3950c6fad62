"""Heads: from the core's outputs to a value and to the logits of actions."""

# N rows, I input size, A actions, E size of an action's embedding, C channels of the big actor
# D dimensions of continuous actions

import torch
from torch import Tensor, nn

from engram.agent.actions import ActionSpace, GaussianActions
from engram.agent.layers import initialise, scale_to_, two_layers
from engram.env.spec import EnvSpec
from engram.settings import UserError

SHORTCUT_INPUTS = 256  # more inputs are scaled down; MiniGrid's view has 2352 one-hots
NARROW_HIDDEN_SIZE = 128  # hidden units of heads for vectors and images, which learn faster than wide ones there


class Critic(nn.Module):
    """Features [N, I] to values [N, 1]."""

    def __init__(self, input_size: int, hidden_size: int = 1024) -> None:
        super().__init__()
        self.hidden = initialise(nn.Linear(input_size, hidden_size), "tanh")
        self.value = initialise(nn.Linear(hidden_size, 1))

    def forward(self, features_NI: Tensor) -> Tensor:
        check_width(self, features_NI, self.hidden.in_features)
        return two_layers(features_NI, self.hidden, self.value, "tanh")


class ActionEmbedding(nn.Module):
    """A learned vector per action; calling it returns all of them [A, E]."""

    def __init__(self, num_actions: int, embedding_size: int = 16) -> None:
        super().__init__()
        weight = nn.init.orthogonal_(torch.empty(num_actions, embedding_size))
        self.weight = nn.Parameter(scale_to_(weight, 0.1))

    def forward(self) -> Tensor:
        return self.weight


class BilinearScores(nn.Module):
    """tanh(features · W) · embedding + bias: features [N, I] and embeddings [A, E] to scores [N, A].

    W is applied to the features before the embeddings, so once per row, whatever the number of actions.
    """

    def __init__(self, input_size: int, embedding_size: int) -> None:
        super().__init__()
        self.query = initialise(nn.Linear(input_size, embedding_size, bias=False), "tanh")
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, features_NI: Tensor, embeddings_AE: Tensor) -> Tensor:
        return self.score(self.query(features_NI), embeddings_AE)

    def score(self, query_NE: Tensor, embeddings_AE: Tensor) -> Tensor:
        return query_NE.tanh() @ embeddings_AE.T + self.bias


class BigBilinearScores(nn.Module):
    """`BilinearScores` with several channels, which a small network turns into one score per action."""

    def __init__(
        self, input_size: int = 512, embedding_size: int = 16, channels: int = 32, hidden_size: int = 512
    ) -> None:
        super().__init__()
        self.channels = channels
        self.query = initialise(nn.Linear(input_size, channels * embedding_size, bias=False), "tanh")
        self.bias = nn.Parameter(torch.zeros(channels))
        self.hidden = initialise(nn.Linear(channels, hidden_size), "relu")
        self.score = initialise(nn.Linear(hidden_size, 1))

    def forward(self, features_NI: Tensor, embeddings_AE: Tensor) -> Tensor:
        query_NCE = self.query(features_NI).tanh().unflatten(-1, (self.channels, -1))
        scores_NAC = (query_NCE @ embeddings_AE.T).transpose(1, 2) + self.bias
        rows, actions, _ = scores_NAC.shape
        return two_layers(scores_NAC.flatten(0, 1), self.hidden, self.score, "relu").view(rows, actions)


def make_critic(spec: EnvSpec, input_size: int) -> Critic:
    """A wide critic for tokens, a narrow one for other observations."""
    return Critic(input_size) if spec.observation_kind == "tokens" else Critic(input_size, NARROW_HIDDEN_SIZE)


def make_actor(spec: EnvSpec, actions: ActionSpace, input_size: int) -> nn.Module:
    """An actor with the outputs that this action space needs: a wide one for tokens, a narrow one for the rest."""
    tokens = spec.observation_kind == "tokens"
    if isinstance(actions, GaussianActions):
        return GaussianActor(input_size, actions.dimensions, 512 if tokens else NARROW_HIDDEN_SIZE)
    return BilinearActor(input_size, actions.logits) if tokens else LinearActor(input_size, actions.logits)


class BilinearActor(nn.Module):
    """Features [N, I] to logits [N, A], by a hidden layer and an embedding of each action."""

    def __init__(self, input_size: int, num_actions: int, hidden_size: int = 512, embedding_size: int = 16) -> None:
        super().__init__()
        self.hidden = initialise(nn.Linear(input_size, hidden_size), "relu")
        self.embedding = ActionEmbedding(num_actions, embedding_size)
        self.scores = BilinearScores(hidden_size, embedding_size)

    def forward(self, features_NI: Tensor) -> Tensor:
        check_width(self, features_NI, self.hidden.in_features)
        query_NE = two_layers(features_NI, self.hidden, self.scores.query, "relu")
        return self.scores.score(query_NE, self.embedding())


class LinearActor(nn.Module):
    """Features [N, I] to logits [N, A], by a hidden layer. Initial logits are near 0."""

    def __init__(self, input_size: int, num_actions: int, hidden_size: int = NARROW_HIDDEN_SIZE) -> None:
        super().__init__()
        self.hidden = initialise(nn.Linear(input_size, hidden_size), "relu")
        self.output = initialise(nn.Linear(hidden_size, num_actions), initialisation="max_0_01")

    def forward(self, features_NI: Tensor) -> Tensor:
        check_width(self, features_NI, self.hidden.in_features)
        return two_layers(features_NI, self.hidden, self.output, "relu")


class Shortcut(nn.Linear):
    """A linear layer from the observation [N, I] to logits [N, A] that bypasses the recurrent core. Initially 0.

    Adam moves every weight by about the learning rate, so a logit moves by the sum over all inputs. Many inputs are
    scaled down, or the first updates would make the policy nearly deterministic.
    """

    def __init__(self, input_size: int, num_actions: int) -> None:
        super().__init__(input_size, num_actions, bias=False)
        nn.init.zeros_(self.weight)
        self.scale = min(1.0, SHORTCUT_INPUTS / input_size)

    def forward(self, observations_NI: Tensor) -> Tensor:
        return super().forward(observations_NI) * self.scale


@torch.no_grad()
def ignore_at_first(layer: nn.Linear, first_ignored: int) -> None:
    """Weights of 0 for the inputs from this one on: they disturb nothing until training finds them useful."""
    layer.weight[:, first_ignored:] = 0


class GaussianOutput(nn.Module):
    """Features [N, I] to means and log standard deviations [N, 2 * dimensions], the latter a free parameter."""

    def __init__(self, input_size: int, dimensions: int) -> None:
        super().__init__()
        # Small, so that a new policy has means near 0 for any input.
        self.mean = initialise(nn.Linear(input_size, dimensions), initialisation="max_0_01")
        self.log_std = nn.Parameter(torch.zeros(dimensions))

    def forward(self, features_NI: Tensor) -> Tensor:
        return self.with_log_std(self.mean(features_NI))

    def with_log_std(self, mean_ND: Tensor) -> Tensor:
        return torch.cat([mean_ND, self.log_std.to(mean_ND.dtype).expand_as(mean_ND)], dim=-1)


class GaussianActor(nn.Module):
    """Features [N, I] to means and log standard deviations [N, 2 * dimensions], for continuous actions."""

    def __init__(self, input_size: int, dimensions: int, hidden_size: int = 512) -> None:
        super().__init__()
        self.hidden = initialise(nn.Linear(input_size, hidden_size), "relu")
        self.output = GaussianOutput(hidden_size, dimensions)

    def forward(self, features_NI: Tensor) -> Tensor:
        check_width(self, features_NI, self.hidden.in_features)
        return self.output.with_log_std(two_layers(features_NI, self.hidden, self.output.mean, "relu"))


def check_width(head: nn.Module, features_NI: Tensor, width: int) -> None:
    """Raise `UserError` unless the features have the head's input size."""
    if features_NI.shape[-1] != width:
        raise UserError(
            f"{type(head).__name__}: got features {list(features_NI.shape)}, expected [N, {width}]: construct it with "
            "the size of its input, such as the policy's hidden_size"
        )
