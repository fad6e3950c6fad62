"""How each kind of component is built: the modules of the Python policies, sized by the shapes that were inferred."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from engram.agent import heads
from engram.agent.components import encoder_kinds, head_kinds, layer_kinds
from engram.agent.components.plan import Step
from engram.agent.components.shapes import Shape, Target
from engram.agent.encoders import attention, box, tokens, vector
from engram.agent.encoders.convolution import Conv2d
from engram.agent.initialisation import INITIALISATIONS, initialise
from engram.agent.recurrent.cores import CORES

Builder = Callable[[Any, Sequence[Shape], Target], nn.Module]  # (options, shapes of the inputs, what it is for)


def build(step: Step, target: Target) -> nn.Module:
    """The module of a component: called with its inputs in order; a core is a `Core`."""
    return BUILDERS[step.kind](step.options, step.inputs, target)


class Merged(nn.Module):
    """Several inputs made one."""

    def __init__(self, merge: Callable[[Sequence[Tensor]], Tensor]) -> None:
        super().__init__()
        self.merge = merge

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.merge(inputs)


def concat(inputs: Sequence[Tensor]) -> Tensor:
    return torch.cat(tuple(inputs), dim=1)


def add(inputs: Sequence[Tensor]) -> Tensor:
    return sum(inputs[1:], inputs[0])


def subtract(inputs: Sequence[Tensor]) -> Tensor:
    return inputs[0] - inputs[1]


def mean(inputs: Sequence[Tensor]) -> Tensor:
    return add(inputs) / len(inputs)


def linear(options: layer_kinds.Linear, inputs: Sequence[Shape], target: Target) -> nn.Module:
    layer = nn.Linear(inputs[0].sizes[0], target.logits if options.size == "actions" else options.size)
    return initialise(layer, options.nonlinearity, options.initialisation)


def conv2d(options: layer_kinds.Conv2d, inputs: Sequence[Shape], target: Target) -> nn.Module:
    channels, height, width = inputs[0].sizes
    sizes = box.fit_convolution((height, width), options.kernel, options.stride, options.leave)
    layer = Conv2d(channels, options.channels, sizes.kernel, sizes.stride)
    return initialise(layer, options.nonlinearity, options.initialisation)


def token_conv2d(options: layer_kinds.TokenConv2d, inputs: Sequence[Shape], target: Target) -> nn.Module:
    sizes = box.fit_convolution(target.spec.window, options.kernel, options.stride, options.leave)
    layer = box.TokenConv2d(target.spec, options.channels, sizes.kernel, sizes.stride)
    initialise(layer.conv, options.nonlinearity, options.initialisation)
    return layer


def latent_attention(options: encoder_kinds.LatentAttention, inputs: Sequence[Shape], target: Target) -> nn.Module:
    sizes = (options.query_tokens, options.query_dim, options.layers, options.heads)
    return attention.LatentCrossAttention(inputs[0].sizes[1], *sizes, out_dim=options.size)


def self_attention(options: encoder_kinds.SelfAttention, inputs: Sequence[Shape], target: Target) -> nn.Module:
    return attention.SelfAttention(inputs[0].sizes[1], options.layers, options.heads, options.size)


def image_encoder(options: encoder_kinds.ImageEncoder, inputs: Sequence[Shape], target: Target) -> nn.Module:
    height, width, channels = inputs[0].sizes
    return vector.ImageEncoder((height, width, channels), options.size)


def recurrent(core: str) -> Builder:
    def build_core(options: head_kinds.Recurrent, inputs: Sequence[Shape], target: Target) -> nn.Module:
        module = CORES[core](inputs[0].sizes[0], options.hidden_size, options.num_layers)
        if options.initialisation != "orthogonal":  # which it begins with
            for name, parameter in module.named_parameters():
                if name.startswith("weight"):
                    for gate in parameter.detach().chunk(module.gates):
                        INITIALISATIONS[options.initialisation](gate, 1.0)
        return module

    return build_core


def actor(options: head_kinds.Actor, inputs: Sequence[Shape], target: Target) -> nn.Module:
    features = inputs[0].sizes[0]
    if target.continuous:
        return initialise(nn.Linear(features, target.logits), initialisation="max_0_01")  # as that of GaussianActor
    return heads.BilinearScores(features, inputs[1].sizes[1])


def big_actor(options: head_kinds.BigActor, inputs: Sequence[Shape], target: Target) -> nn.Module:
    features = inputs[0].sizes[0]
    if target.continuous:
        return heads.GaussianActor(features, target.logits // 2, options.hidden_size)
    return heads.BigBilinearScores(features, inputs[1].sizes[1], options.channels, options.hidden_size)


BUILDERS: dict[str, Builder] = {
    "tokens_to_box": lambda options, inputs, target: box.TokensToBox(target.spec, normalise=False),
    "normaliser": lambda options, inputs, target: box.ObservationNormaliser(target.spec),
    "token_conv2d": token_conv2d,
    "strip_padding": lambda options, inputs, target: tokens.StripPadding(),
    "value_norm": lambda options, inputs, target: tokens.TokenDecoder(target.spec),
    "fourier_embedding": lambda options, inputs, target: attention.FourierEmbedding(
        target.spec, options.embed_dim, options.num_freqs
    ),
    "latent_attention": latent_attention,
    "self_attention": self_attention,
    "vector_encoder": lambda options, inputs, target: vector.VectorEncoder(
        inputs[0].sizes[0], options.size, options.hidden_size
    ),
    "image_encoder": image_encoder,
    "linear": linear,
    "conv2d": conv2d,
    "flatten": lambda options, inputs, target: nn.Flatten(),
    "dropout": lambda options, inputs, target: nn.Dropout(options.p),
    "concat": lambda options, inputs, target: Merged(concat),
    "add": lambda options, inputs, target: Merged(add),
    "subtract": lambda options, inputs, target: Merged(subtract),
    "mean": lambda options, inputs, target: Merged(mean),
    "lstm": recurrent("lstm"),
    "gru": recurrent("gru"),
    "mingru": recurrent("mingru"),
    "action_embedding": lambda options, inputs, target: heads.ActionEmbedding(target.logits, options.size),
    "actor": actor,
    "big_actor": big_actor,
}
