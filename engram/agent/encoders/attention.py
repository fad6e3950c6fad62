"""Attention over tokens: embedding, cross-attention by a few learned queries, self-attention among them."""

# N rows, M tokens, F features of an embedded token, Q queries, D their size, E heads, S = D / E

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram.agent.encoders.tokens import StripPadding, TokenDecoder, Tokens
from engram.agent.layers import initialise
from engram.env.spec import EnvSpec
from engram.settings import UserError


class EmbeddedTokens(NamedTuple):
    features: Tensor  # [N, M, F]
    valid: Tensor  # [N, M] bool: the others are masked


class FourierEmbedding(nn.Module):
    """A learned vector per feature, cos and sin of x and y at the frequencies 1, 2, 4, …, and the value."""

    fourier_of_cell: Tensor

    def __init__(self, spec: EnvSpec, embed_dim: int, num_freqs: int) -> None:
        super().__init__()
        self.feature_dim = embed_dim + 4 * num_freqs + 1
        self.embedding = nn.Embedding(len(spec.features), embed_dim)
        # Scaled so that vectors have length about 1, whatever the number of features.
        nn.init.orthogonal_(self.embedding.weight, max(1.0, math.sqrt(len(spec.features) / embed_dim)))
        self.register_buffer("fourier_of_cell", fourier_table(spec.window, num_freqs), persistent=False)

    def forward(self, tokens: Tokens) -> EmbeddedTokens:
        parts = [self.embedding(tokens.features), self.fourier_of_cell[tokens.cells], tokens.values.unsqueeze(-1)]
        return EmbeddedTokens(torch.cat(parts, dim=-1), tokens.valid)


class LatentCrossAttention(nn.Module):
    """Learned queries attend to the tokens, in layers. Returns [N, Q, out_dim], or [N, out_dim] for one query.

    Without `out_dim` there is no output layer, and the size is that of the queries: input for `SelfAttention`.
    """

    def __init__(
        self, feature_dim: int, query_tokens: int, query_dim: int, layers: int, heads: int, out_dim: int | None = None
    ) -> None:
        super().__init__()
        self.queries = nn.Parameter(nn.init.orthogonal_(torch.empty(query_tokens, query_dim)))
        self.norm = nn.LayerNorm(feature_dim)
        self.blocks = nn.ModuleList(CrossAttentionBlock(query_dim, feature_dim, heads) for _ in range(layers))
        self.output_norm = nn.LayerNorm(query_dim)
        self.output = nn.Identity() if out_dim is None else initialise(nn.Linear(query_dim, out_dim))

    def forward(self, tokens: EmbeddedTokens) -> Tensor:
        features = pad_to_lanes(self.norm(tokens.features))
        x = self.queries.unsqueeze(0)  # shared by all rows until the first block
        for block in self.blocks:
            x = block(x, features, tokens.valid)
        x = self.output(self.output_norm(x))
        return x.squeeze(1) if x.shape[1] == 1 else x


class SelfAttention(nn.Module):
    """Self-attention over a sequence [N, Q, D] and a class token, whose output is returned: [N, out_dim]."""

    def __init__(self, dim: int, layers: int, heads: int, out_dim: int) -> None:
        super().__init__()
        self.class_token = nn.Parameter(nn.init.orthogonal_(torch.empty(1, dim)))
        self.blocks = nn.ModuleList(SelfAttentionBlock(dim, heads) for _ in range(layers))
        self.output_norm = nn.LayerNorm(dim)
        self.output = initialise(nn.Linear(dim, out_dim))

    def forward(self, sequence_NQD: Tensor) -> Tensor:
        x = torch.cat(
            [self.class_token.to(sequence_NQD.dtype).expand(sequence_NQD.shape[0], 1, -1), sequence_NQD], dim=1
        )
        for block in self.blocks:
            x = block(x)
        return self.output(self.output_norm(x[:, 0]))


class AttentionSizes(NamedTuple):
    """Sizes of an attention encoder. Without self-attention there is one query, which gives the result."""

    embed_dim: int
    num_freqs: int
    query_tokens: int
    query_dim: int
    cross_layers: int
    cross_heads: int
    self_layers: int = 0
    self_heads: int = 0


ATTENTION_SIZES = {
    "latent_attn_tiny": AttentionSizes(10, 4, query_tokens=1, query_dim=32, cross_layers=2, cross_heads=4),
    "latent_attn_small": AttentionSizes(8, 8, 10, 32, cross_layers=1, cross_heads=4, self_layers=2, self_heads=4),
    "latent_attn_med": AttentionSizes(12, 8, 10, 32, cross_layers=3, cross_heads=8, self_layers=3, self_heads=8),
}


class AttentionEncoder(nn.Module):
    """Tokens [N, M, 3] to features [N, output_size]."""

    def __init__(self, spec: EnvSpec, sizes: AttentionSizes, output_size: int = 128) -> None:
        super().__init__()
        relate = sizes.self_layers > 0
        self.strip = StripPadding()
        self.decode = TokenDecoder(spec)
        self.embed = FourierEmbedding(spec, sizes.embed_dim, sizes.num_freqs)
        self.cross = LatentCrossAttention(
            self.embed.feature_dim,
            sizes.query_tokens,
            sizes.query_dim,
            sizes.cross_layers,
            sizes.cross_heads,
            out_dim=None if relate else output_size,
        )
        self.relate = (
            SelfAttention(sizes.query_dim, sizes.self_layers, sizes.self_heads, output_size)
            if relate
            else nn.Identity()
        )

    def forward(self, tokens_NM3: Tensor) -> Tensor:
        return self.relate(self.cross(self.embed(self.decode(self.strip(tokens_NM3)))))


class CrossAttentionBlock(nn.Module):
    """Cross-attention and an MLP: pre-norm, residual, GELU, four times the width.

    Tokens are many and queries few. So the key weights are applied to the queries, and the value weights to the
    attended features: the same sums in a different order, with no key or value per token.
    """

    def __init__(self, dim: int, feature_dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, 1 / math.sqrt(head_size(dim, heads))
        self.norm = nn.LayerNorm(dim)
        self.query = initialise(nn.Linear(dim, dim))
        self.key = initialise(nn.Linear(feature_dim, dim, bias=False))  # a bias would cancel in the softmax
        self.value = initialise(nn.Linear(feature_dim, dim))
        self.merge = initialise(nn.Linear(dim, dim))
        self.think = mlp(dim)

    def forward(self, x_NQD: Tensor, features_NMF: Tensor, valid_NM: Tensor) -> Tensor:
        x = x_NQD + self.merge(self.attend(self.query(self.norm(x_NQD)), features_NMF, valid_NM))
        return x + self.think(x)

    def attend(self, query_NQD: Tensor, features_NMF: Tensor, valid_NM: Tensor) -> Tensor:
        """The attended values [N, Q, D]; zeros in a row without tokens."""
        query = query_NQD.unflatten(-1, (self.heads, -1))
        key, value = (pad_to_lanes(linear.weight).unflatten(0, (self.heads, -1)) for linear in (self.key, self.value))
        query_features = torch.einsum("nqes,esf->neqf", query, key).flatten(1, 2)
        any_valid = valid_NM.any(dim=1)
        mask = valid_NM | ~any_valid.unsqueeze(1)  # a softmax over no tokens would be NaN
        attended = F.scaled_dot_product_attention(
            query_features.expand(features_NMF.shape[0], -1, -1).unsqueeze(1),
            features_NMF.unsqueeze(1),
            features_NMF.unsqueeze(1),
            attn_mask=mask[:, None, None],
            scale=self.scale,
        )
        attended = attended.squeeze(1).unflatten(1, (self.heads, -1))  # [N, E, Q, F]
        values = torch.einsum("neqf,esf->nqes", attended, value).flatten(2) + self.value.bias
        return torch.where(any_valid[:, None, None], values, 0)


class SelfAttentionBlock(nn.Module):
    """Self-attention over a sequence [N, Q, D], and an MLP."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, 1 / math.sqrt(head_size(dim, heads))
        self.norm = nn.LayerNorm(dim)
        self.query, self.value, self.merge = (initialise(nn.Linear(dim, dim)) for _ in range(3))
        self.key = initialise(nn.Linear(dim, dim, bias=False))  # a bias would cancel in the softmax
        self.think = mlp(dim)

    def forward(self, x_NQD: Tensor) -> Tensor:
        normed = self.norm(x_NQD)
        query, key, value = (
            project(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        attended = F.scaled_dot_product_attention(query, key, value, scale=self.scale).transpose(1, 2).flatten(2)
        x = x_NQD + self.merge(attended)
        return x + self.think(x)


def mlp(dim: int) -> nn.Sequential:
    """The MLP of a block, pre-norm."""
    wide, narrow = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
    return nn.Sequential(nn.LayerNorm(dim), initialise(wide, "gelu"), nn.GELU(), initialise(narrow))


def head_size(dim: int, heads: int) -> int:
    if heads < 1 or dim % heads:
        raise UserError(f"attention: {dim} dimensions cannot be split into {heads} heads: choose a divisor of {dim}")
    return dim // heads


def pad_to_lanes(features: Tensor) -> Tensor:
    """The last dimension zero-padded to a multiple of 8, which attention kernels need; sums do not change."""
    return F.pad(features, (0, -features.shape[-1] % 8))


def fourier_table(window: tuple[int, int], num_freqs: int) -> Tensor:
    """[H * W, 4 * num_freqs]: cos and sin of x, then of y, of each cell; x and y run from -1 to 1, the agent at 0."""
    y, x = (torch.linspace(-1, 1, cells) if cells > 1 else torch.zeros(1) for cells in window)
    frequencies = 2.0 ** torch.arange(num_freqs)
    x_waves, y_waves = x.repeat(len(y))[:, None] * frequencies, y.repeat_interleave(len(x))[:, None] * frequencies
    return torch.cat([x_waves.cos(), x_waves.sin(), y_waves.cos(), y_waves.sin()], dim=1)
