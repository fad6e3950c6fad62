"""Heads: what a policy says of the features its memory gives: a value, and a number for every action."""

# N rows, I input size, A actions, E size of an action's embedding, C channels of the big actor

import torch
from torch import Tensor, nn

from engram.agent.actions import ActionSpace, Gaussian
from engram.agent.initialisation import initialise, orthogonal_, scale_to_
from engram.agent.layers import two_layers
from engram.agent.recurrent.tanh import tanh
from engram.settings import UserError


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
    """A learned vector for each action; called without arguments, it gives them all [A, E]."""

    def __init__(self, num_actions: int, embedding_size: int = 16) -> None:
        super().__init__()
        weight = orthogonal_(torch.empty(num_actions, embedding_size))
        self.weight = nn.Parameter(scale_to_(weight, 0.1))

    def forward(self) -> Tensor:
        return self.weight


class BilinearScores(nn.Module):
    """tanh(actor · W) · embedding + bias, for features [N, I] and embeddings [A, E]: [N, A].

    The features meet the embeddings after W, so W is applied once per row however many actions there are.
    """

    def __init__(self, input_size: int = 512, embedding_size: int = 16) -> None:
        super().__init__()
        self.query = initialise(nn.Linear(input_size, embedding_size, bias=False), "tanh")
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, features_NI: Tensor, embeddings_AE: Tensor) -> Tensor:
        return self.meet(self.query(features_NI), embeddings_AE)

    def meet(self, query_NE: Tensor, embeddings_AE: Tensor) -> Tensor:
        return tanh(query_NE) @ embeddings_AE.T + self.bias


class BigBilinearScores(nn.Module):
    """As `BilinearScores`, in several channels, and a small network that makes one score of an action's channels."""

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
        query_NCE = tanh(self.query(features_NI)).unflatten(-1, (self.channels, -1))
        scores_NAC = (query_NCE @ embeddings_AE.T).transpose(1, 2) + self.bias
        rows, actions, _ = scores_NAC.shape
        return two_layers(scores_NAC.flatten(0, 1), self.hidden, self.score, "relu").view(rows, actions)


def make_actor(actions: ActionSpace, input_size: int) -> nn.Module:
    """The actor for a kind of actions, giving the logits it needs."""
    if isinstance(actions, Gaussian):
        return GaussianActor(input_size, actions.dimensions)
    return BilinearActor(input_size, actions.logits)


class BilinearActor(nn.Module):
    """Features [N, I] to logits [N, A], through a hidden layer and an embedding of each action."""

    def __init__(self, input_size: int, num_actions: int, hidden_size: int = 512, embedding_size: int = 16) -> None:
        super().__init__()
        self.hidden = initialise(nn.Linear(input_size, hidden_size), "relu")
        self.embedding = ActionEmbedding(num_actions, embedding_size)
        self.scores = BilinearScores(hidden_size, embedding_size)

    def forward(self, features_NI: Tensor) -> Tensor:
        check_width(self, features_NI, self.hidden.in_features)
        query_NE = two_layers(features_NI, self.hidden, self.scores.query, "relu")
        return self.scores.meet(query_NE, self.embedding())


class GaussianActor(nn.Module):
    """Features [N, I] to means and logarithms of standard deviations [N, 2 * dimensions], for continuous actions."""

    def __init__(self, input_size: int, dimensions: int, hidden_size: int = 512) -> None:
        super().__init__()
        self.hidden = initialise(nn.Linear(input_size, hidden_size), "relu")
        # Small, so that a policy begins with means near 0 and deviations near 1 whatever it sees.
        self.output = initialise(nn.Linear(hidden_size, 2 * dimensions), initialisation="max_0_01")

    def forward(self, features_NI: Tensor) -> Tensor:
        check_width(self, features_NI, self.hidden.in_features)
        return two_layers(features_NI, self.hidden, self.output, "relu")


def check_width(head: nn.Module, features_NI: Tensor, width: int) -> None:
    """Raises unless the features have as many numbers as the head was made for."""
    if features_NI.shape[-1] != width:
        raise UserError(
            f"{type(head).__name__}: it was made for features [N, {width}] and got {list(features_NI.shape)}: "
            "give it the size of what it reads when it is made, such as the policy's hidden_size"
        )
