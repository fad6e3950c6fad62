"""Kinds of components for what comes after seeing: memory, the embedding of actions, and actors."""

from collections.abc import Sequence

from engram.agent.components.kind import Initialisation, Kind, Positive, Weighted
from engram.agent.components.shapes import MisfitError, Shape, Target, listed

DISCRETE = "reads features and action embeddings, got {}: give sources: [FEATURES, _action_embeds_]"
CONTINUOUS = "reads features alone where actions are continuous, got {}: give `for: discrete` to the embeddings"


class Recurrent(Weighted):
    """A core that remembers, under the component's name."""

    reads = ("features",)
    same_for_all_inputs = True
    hidden_size: Positive = 128
    num_layers: Positive = 2
    initialisation: Initialisation = "orthogonal"

    def shape(self, inputs: Sequence[Shape], target: Target) -> Shape:
        return Shape("features", (self.hidden_size,))


class ActionEmbedding(Kind):
    """A learned vector for each action."""

    reads = ()
    sources = (0, 0)
    size: Positive = 16

    def shape(self, inputs: Sequence[Shape], target: Target) -> Shape:
        if target.continuous:
            raise MisfitError("embeds discrete actions, and the environment's are continuous: give it `for: discrete`")
        return Shape("embeddings", (target.logits, self.size))


class Actor(Weighted):
    """Features and action embeddings to a score per action; where actions are continuous, features alone to means and
    deviations."""

    reads = ("features", "embeddings")
    sources = (1, 2)

    def shape(self, inputs: Sequence[Shape], target: Target) -> Shape:
        forms = [shape.form for shape in inputs]
        if forms != (["features"] if target.continuous else ["features", "embeddings"]):
            raise MisfitError((CONTINUOUS if target.continuous else DISCRETE).format(listed(inputs)))
        return Shape("features", (target.logits,))


class BigActor(Actor):
    """As the actor, in several channels of which a small network makes the score."""

    channels: Positive = 32
    hidden_size: Positive = 512
