"""Attention over tokens ignores padding and order, and handles rows without tokens."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from engram.agent.encoders.attention import (
    ATTENTION_SIZES,
    AttentionEncoder,
    CrossAttentionBlock,
    EmbeddedTokens,
    FourierEmbedding,
    LatentCrossAttention,
    SelfAttention,
)
from engram.agent.encoders.tokens import TokenDecoder
from engram.env.parts import box
from engram.env.spec import EnvSpec, Feature
from engram.settings import UserError

KINDS = sorted(ATTENTION_SIZES)


def token_spec(window=(11, 11)):
    features = tuple(Feature(3 * i, f"feature_{i}", 100.0) for i in range(5))
    return EnvSpec(
        "attention", box((40, 3), np.dtype("uint8")), spaces.Discrete(2), "tokens", window=window, features=features
    )


def random_tokens(rows=5, count=40, real=24):
    """Rows with at most `real` tokens, then padding."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 256, (rows, count, 3), generator=generator)
    row, column = (torch.randint(0, 11, (rows, count), generator=generator) for _ in range(2))
    tokens[..., 0] = row * 16 + column
    tokens[..., 1] = 3 * torch.randint(0, 5, (rows, count), generator=generator)
    tokens[torch.arange(count) >= real - torch.arange(rows).unsqueeze(1)] = 0xFF
    return tokens.to(torch.uint8)


def padded(tokens, count):
    return torch.cat([tokens, torch.full((len(tokens), count, 3), 0xFF, dtype=torch.uint8)], dim=1)


def make(kind="latent_attn_tiny", **spec):
    torch.manual_seed(0)
    return AttentionEncoder(token_spec(**spec), ATTENTION_SIZES[kind])


def embed(*tokens, spec=None, embed_dim=10, num_freqs=4):
    spec = spec or token_spec()
    embedding = FourierEmbedding(spec, embed_dim, num_freqs)
    return embedding, embedding(TokenDecoder(spec)(torch.tensor([tokens], dtype=torch.uint8)))


def test_an_embedded_token_has_embedding_fourier_features_and_value():
    embedding, (features, real) = embed((0x3A, 6, 50))
    x, y, frequencies = 1.0, 3 / 10 * 2 - 1, (1, 2, 4, 8)
    waves = [wave(f * place) for place in (x, y) for wave in (math.cos, math.sin) for f in frequencies]
    expected = torch.cat([embedding.embedding.weight[2], torch.tensor([*waves, 0.5])])
    torch.testing.assert_close(features[0, 0], expected)
    assert real.all()


@pytest.mark.parametrize(("embed_dim", "num_freqs", "total"), [(10, 4, 27), (8, 8, 41), (12, 8, 45)])
def test_the_number_of_features_is_that_of_the_contract(embed_dim, num_freqs, total):
    embedding, (features, _) = embed((0, 0, 1), embed_dim=embed_dim, num_freqs=num_freqs)
    assert embedding.feature_dim == features.shape[-1] == total


def test_global_tokens_are_at_the_origin():
    _, (features, real) = embed((0xFE, 6, 50), (0x55, 6, 50))
    assert torch.equal(features[0, 0], features[0, 1])
    assert features[0, 0, 10:14].tolist() == [1.0] * 4
    assert real.all()


def test_a_block_equals_torch_multihead_attention():
    torch.manual_seed(0)
    block = CrossAttentionBlock(dim=32, feature_dim=27, heads=4)
    reference = nn.MultiheadAttention(32, 4, kdim=27, vdim=27, batch_first=True)
    with torch.no_grad():
        reference.q_proj_weight.copy_(torch.eye(32))
        reference.k_proj_weight.copy_(block.key.weight)
        reference.v_proj_weight.copy_(block.value.weight)
        block.value.bias.normal_()
        reference.in_proj_bias.copy_(torch.cat([torch.zeros(64), block.value.bias]))
        reference.out_proj.weight.copy_(torch.eye(32))
    query, features, real = torch.randn(3, 6, 32), torch.randn(3, 20, 27), torch.rand(3, 20) < 0.5
    expected, _ = reference(query, features, features, key_padding_mask=~real)
    padded_features = torch.cat([features, torch.zeros(3, 20, 5)], dim=-1)
    torch.testing.assert_close(block.attend(query, padded_features, real), expected)


def test_a_row_without_tokens_attends_to_nothing():
    block = CrossAttentionBlock(dim=32, feature_dim=24, heads=4)
    nn.init.ones_(block.value.bias)
    real = torch.tensor([[True, False], [False, False]])
    attended = block.attend(torch.randn(2, 3, 32), torch.randn(2, 2, 24), real)
    assert attended[0].all()
    assert not attended[1].any()


@pytest.mark.parametrize("kind", KINDS)
def test_more_padding_gives_the_same_numbers(kind):
    encoder, tokens = make(kind), random_tokens()
    torch.testing.assert_close(encoder(padded(tokens, 60)), encoder(tokens), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_masking_and_stripping_give_the_same_numbers(kind):
    encoder, tokens = make(kind), padded(random_tokens(), 60)
    stripped = encoder(tokens)
    encoder.strip = nn.Identity()
    torch.testing.assert_close(encoder(tokens), stripped, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_tokens_does_not_matter(kind):
    encoder, tokens = make(kind), random_tokens()
    shuffled = tokens[:, torch.randperm(tokens.shape[1], generator=torch.Generator().manual_seed(1))]
    torch.testing.assert_close(encoder(shuffled), encoder(tokens), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_does_not_depend_on_the_others(kind):
    encoder, tokens = make(kind), random_tokens()
    torch.testing.assert_close(encoder(tokens[3:4]), encoder(tokens)[3:4], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_every_token_counts_global_ones_too(kind):
    encoder, tokens = make(kind), random_tokens()
    for token in ((0x12, 3, 50), (0xFE, 3, 50)):
        changed = tokens.clone()
        changed[:, 10] = torch.tensor(token)
        assert ((encoder(changed) - encoder(tokens)).abs().amax(dim=1) > 1e-6).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_without_tokens_gives_finite_numbers_and_gradients(kind):
    encoder, tokens = make(kind), random_tokens()
    tokens[2] = 0xFF
    result = encoder(tokens)
    result.square().sum().backward()
    assert result.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in encoder.parameters())
    torch.testing.assert_close(encoder(padded(tokens[2:3], 30)), result[2:3], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_has_a_gradient(kind):
    encoder = make(kind)
    (encoder(random_tokens()) * torch.randn(5, 128)).sum().backward()
    assert [name for name, p in encoder.named_parameters() if p.grad.abs().max() < 1e-4] == []


@pytest.mark.parametrize("kind", KINDS)
def test_double_precision_and_autocast_work(kind):
    encoder, tokens = make(kind), random_tokens()
    single = encoder(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(encoder(tokens).float(), single, atol=0.1, rtol=0.1)
    torch.testing.assert_close(encoder.double()(tokens).float(), single, atol=1e-5, rtol=1e-4)


def test_one_query_gives_a_vector_and_several_a_sequence():
    tokens = EmbeddedTokens(torch.randn(3, 7, 11), torch.ones(3, 7, dtype=torch.bool))
    assert LatentCrossAttention(11, 1, 32, layers=2, heads=4, out_dim=128)(tokens).shape == (3, 128)
    assert LatentCrossAttention(11, 10, 32, layers=1, heads=4, out_dim=16)(tokens).shape == (3, 10, 16)
    sequence = LatentCrossAttention(11, 10, 32, layers=1, heads=4)(tokens)
    assert SelfAttention(32, layers=2, heads=4, out_dim=128)(sequence).shape == (3, 128)


def test_heads_that_do_not_divide_the_dimensions_are_an_error():
    with pytest.raises(UserError, match="32 dimensions cannot be split into 5 heads"):
        SelfAttention(32, layers=1, heads=5, out_dim=8)


@pytest.mark.parametrize("window", [(5, 5), (3, 15), (1, 1)])
def test_every_window_can_be_encoded(window):
    assert make(window=window)(random_tokens()).isfinite().all()
