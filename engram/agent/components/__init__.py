"""YAML components: COMPONENTS maps the `kind` in YAML to the class that describes and builds it."""

from engram.agent.components import encoders, heads, layers
from engram.agent.components.component import Component

COMPONENTS: dict[str, type[Component]] = {
    "tokens_to_box": encoders.TokensToBoxComponent,
    "normaliser": encoders.NormaliserComponent,
    "token_conv2d": layers.TokenConv2dComponent,
    "strip_padding": encoders.StripPaddingComponent,
    "value_norm": encoders.ValueNormComponent,
    "fourier_embedding": encoders.FourierEmbeddingComponent,
    "latent_attention": encoders.LatentAttentionComponent,
    "self_attention": encoders.SelfAttentionComponent,
    "reader": encoders.ReaderComponent,
    "vector_encoder": encoders.VectorEncoderComponent,
    "image_encoder": encoders.ImageEncoderComponent,
    "parts_encoder": encoders.PartsEncoderComponent,
    "event_counts": encoders.EventCountsComponent,
    "linear": layers.LinearComponent,
    "joint_linear": layers.JointLinearComponent,
    "conv2d": layers.Conv2dComponent,
    "flatten": layers.FlattenComponent,
    "dropout": layers.DropoutComponent,
    "concat": layers.ConcatComponent,
    "add": layers.AddComponent,
    "subtract": layers.SubtractComponent,
    "mean": layers.MeanComponent,
    "core": heads.DefaultCoreComponent,
    "lstm": heads.LSTMComponent,
    "gru": heads.GRUComponent,
    "mingru": heads.MinGRUComponent,
    "lru": heads.LRUComponent,
    "attention": heads.AttentionCoreComponent,
    "action_embedding": heads.ActionEmbeddingComponent,
    "actor": heads.ActorComponent,
    "big_actor": heads.BigActorComponent,
    "shortcut": heads.ShortcutComponent,
}
