"""The kinds of components by the names YAML gives them."""

from engram.agent.components import encoder_kinds as encoders
from engram.agent.components import head_kinds as heads
from engram.agent.components import layer_kinds as layers
from engram.agent.components.kind import Kind

KINDS: dict[str, type[Kind]] = {
    "tokens_to_box": encoders.TokensToBox,
    "normaliser": encoders.Normaliser,
    "token_conv2d": layers.TokenConv2d,
    "strip_padding": encoders.StripPadding,
    "value_norm": encoders.ValueNorm,
    "fourier_embedding": encoders.FourierEmbedding,
    "latent_attention": encoders.LatentAttention,
    "self_attention": encoders.SelfAttention,
    "vector_encoder": encoders.VectorEncoder,
    "image_encoder": encoders.ImageEncoder,
    "linear": layers.Linear,
    "conv2d": layers.Conv2d,
    "flatten": layers.Flatten,
    "dropout": layers.Dropout,
    "concat": layers.Concat,
    "add": layers.Merge,
    "subtract": layers.Subtract,
    "mean": layers.Merge,
    "lstm": heads.Recurrent,
    "gru": heads.Recurrent,
    "mingru": heads.Recurrent,
    "action_embedding": heads.ActionEmbedding,
    "actor": heads.Actor,
    "big_actor": heads.BigActor,
}
