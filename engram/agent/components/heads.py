"""Components after the encoder: recurrent cores, the embedding of actions, and actors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from engram.agent.components.component import (
    BuildContext,
    Component,
    Initialisation,
    Positive,
    Shape,
    ShapeError,
    WeightedComponent,
    join,
)

if TYPE_CHECKING:
    from torch import nn

DISCRETE = "reads features, or features and action embeddings, got {}: give sources: [FEATURES, _action_embeds_]"
CONTINUOUS = "reads features alone when actions are continuous, got {}: give the embeddings `for: discrete`"


class CoreComponent(WeightedComponent):
    """A recurrent core. Its memory is stored under the component's name."""

    core: ClassVar[str]  # a name in CORES
    reads = ("features",)
    fixed_shape = True
    hidden_size: Positive = 128
    num_layers: Positive | None = None  # null: 2 for tokens, else 1
    initialisation: Initialisation = "orthogonal"

    @property
    def past_steps(self) -> int | None:
        """The window of an attention core."""
        return None

    def core_name(self, context: BuildContext) -> str:
        return self.core

    def output_shape(self, inputs: Sequence[Shape], context: BuildContext) -> Shape:
        return Shape("features", (self.hidden_size,))

    def build(self, inputs: Sequence[Shape], context: BuildContext) -> nn.Module:
        from engram.agent.layers import INITIALISATIONS
        from engram.agent.recurrent import make_core

        layers = self.num_layers or context.spec.default_layers
        module = make_core(self.core_name(context), inputs[0].sizes[0], self.hidden_size, layers, self.past_steps)
        if self.initialisation != "orthogonal":  # the default of every core
            for name, parameter in module.named_parameters():
                if name.startswith("weight"):
                    for gate in parameter.detach().chunk(module.gates):
                        INITIALISATIONS[self.initialisation](gate, 1.0)
        return module


class DefaultCoreComponent(CoreComponent):
    """An LRU where observations are only symbols, otherwise an LSTM."""

    def core_name(self, context: BuildContext) -> str:
        return context.spec.default_core


class LSTMComponent(CoreComponent):
    core = "lstm"


class GRUComponent(CoreComponent):
    core = "gru"


class MinGRUComponent(CoreComponent):
    core = "mingru"


class LRUComponent(CoreComponent):
    core = "lru"


class AttentionCoreComponent(CoreComponent):
    """Attention over the last steps of an episode."""

    core = "attention"
    window: Positive = 64  # past steps

    @property
    def past_steps(self) -> int | None:
        return self.window


class ActionEmbeddingComponent(Component):
    """A learned vector per action."""

    reads = ()
    num_sources = (0, 0)
    size: Positive = 16

    def output_shape(self, inputs: Sequence[Shape], context: BuildContext) -> Shape:
        if context.continuous:
            raise ShapeError("embeds discrete actions, but the environment's are continuous: give it `for: discrete`")
        return Shape("embeddings", (context.logits, self.size))

    def build(self, inputs: Sequence[Shape], context: BuildContext) -> nn.Module:
        from engram.agent.heads import ActionEmbedding

        return ActionEmbedding(context.logits, self.size)


class ActorComponent(WeightedComponent):
    """Features and action embeddings, or features alone, to one logit per action.

    For continuous actions: features alone to means and log standard deviations.
    """

    reads = ("features", "embeddings")
    num_sources = (1, 2)

    def output_shape(self, inputs: Sequence[Shape], context: BuildContext) -> Shape:
        forms = [shape.form for shape in inputs]
        if forms != ["features"] and (context.continuous or forms != ["features", "embeddings"]):
            raise ShapeError((CONTINUOUS if context.continuous else DISCRETE).format(join(inputs)))
        return Shape("features", (context.logits,))

    def build(self, inputs: Sequence[Shape], context: BuildContext) -> nn.Module:
        from torch import nn

        from engram.agent.heads import BilinearScores, GaussianOutput
        from engram.agent.layers import initialise

        features = inputs[0].sizes[0]
        if context.continuous:
            return GaussianOutput(features, context.logits // 2)
        if len(inputs) == 1:
            return initialise(nn.Linear(features, context.logits), initialisation="max_0_01")
        return BilinearScores(features, inputs[1].sizes[1])


class ShortcutComponent(WeightedComponent):
    """A linear layer from features to logits, initially 0. Adding its output to the actor's bypasses the core."""

    reads = ("features",)

    def output_shape(self, inputs: Sequence[Shape], context: BuildContext) -> Shape:
        return Shape("features", (context.logits,))

    def build(self, inputs: Sequence[Shape], context: BuildContext) -> nn.Module:
        from engram.agent.heads import Shortcut

        return Shortcut(inputs[0].sizes[0], context.logits)


class BigActorComponent(ActorComponent):
    """An actor with several channels, which a small network turns into logits."""

    channels: Positive = 32
    hidden_size: Positive = 512

    def build(self, inputs: Sequence[Shape], context: BuildContext) -> nn.Module:
        from engram.agent.heads import BigBilinearScores, GaussianActor

        features = inputs[0].sizes[0]
        if context.continuous:
            return GaussianActor(features, context.logits // 2, self.hidden_size)
        return BigBilinearScores(features, inputs[1].sizes[1], self.channels, self.hidden_size)
