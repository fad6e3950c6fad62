"""Vectors and images of every size and dtype are encoded, and make_encoder picks the right encoder."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from engram.agent.encoders import make_encoder
from engram.agent.encoders.attention import AttentionEncoder
from engram.agent.encoders.box import BoxEncoder
from engram.agent.encoders.parts import ImageEncoder, VectorEncoder
from engram.env.parts import box
from engram.env.spec import EnvSpec, Feature
from engram.settings import UserError

KINDS = ["fast", "latent_attn_tiny", "latent_attn_small", "latent_attn_med"]


def spec_of(kind, shape, dtype):
    tokens = kind == "tokens"
    return EnvSpec(
        "spec",
        box(shape, np.dtype(dtype)),
        spaces.Discrete(2),
        kind,
        window=(11, 11) if tokens else (0, 0),
        features=(Feature(0, "thing", 1.0),) if tokens else (),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8, torch.int64])
def test_vectors_of_any_dtype_are_encoded(dtype):
    result = VectorEncoder(4, output_size=32)(torch.ones(3, 4, dtype=dtype))
    assert result.shape == (3, 32)
    assert result.dtype == torch.float32


@pytest.mark.parametrize("shape", [(84, 84, 4), (210, 160, 3), (28, 28, 1), (7, 7, 3), (8, 40, 3), (1, 1, 2)])
def test_images_of_any_size_are_encoded(shape):
    assert ImageEncoder(shape, output_size=32)(torch.rand(2, *shape)).shape == (2, 32)


def test_large_images_have_the_usual_convolutions():
    convolutions = [layer for layer in ImageEncoder((84, 84, 4)).convolutions if isinstance(layer, torch.nn.Conv2d)]
    assert [(c.kernel_size[0], c.stride[0]) for c in convolutions] == [(8, 4), (4, 2), (3, 1)]


def test_bytes_are_scaled_and_floats_are_not():
    encoder = ImageEncoder((12, 12, 3))
    image = torch.randint(0, 256, (2, 12, 12, 3), dtype=torch.uint8)
    torch.testing.assert_close(encoder(image), encoder(image.float() / 255))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_encodes_every_observation(kind):
    vectors = make_encoder(spec_of("vector", (6,), "float32"), kind, 64)
    images = make_encoder(spec_of("image", (12, 12, 3), "uint8"), kind, 64)
    tokens = make_encoder(spec_of("tokens", (20, 3), "uint8"), kind, 64)
    assert isinstance(vectors, VectorEncoder)
    assert isinstance(images, ImageEncoder)
    assert isinstance(tokens, BoxEncoder if kind == "fast" else AttentionEncoder)
    assert vectors(torch.rand(3, 6)).shape == (3, 64)
    assert images(torch.zeros(3, 12, 12, 3, dtype=torch.uint8)).shape == (3, 64)
    assert tokens(torch.zeros(3, 20, 3, dtype=torch.uint8)).shape == (3, 64)


def test_an_unknown_kind_is_an_error_with_the_known_ones():
    with pytest.raises(UserError, match=r"no kind 'slow'.*fast, latent_attn_tiny"):
        make_encoder(spec_of("vector", (6,), "float32"), "slow")


def test_double_precision_and_autocast_work():
    image, vector = torch.rand(2, 12, 12, 3), torch.rand(2, 6)
    for encoder, observation in ((ImageEncoder((12, 12, 3)), image), (VectorEncoder(6), vector)):
        single = encoder(observation)
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(encoder(observation).float(), single, atol=0.1, rtol=0.1)
        torch.testing.assert_close(encoder.double()(observation).float(), single, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_it_compiles_whole_and_gives_the_same_numbers():
    encoder, image = ImageEncoder((12, 12, 3)), torch.randint(0, 256, (2, 12, 12, 3), dtype=torch.uint8)
    compiled = torch.compile(encoder, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(image), encoder(image), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("size", [1, 4, 8, 9, 40])
def test_vectors_of_every_size_go_through_two_linear_layers(size: int) -> None:
    torch.manual_seed(0)
    encoder, vectors, weight = VectorEncoder(size, 16, 24), torch.randn(50, size), torch.randn(50, 16)
    for bias in (encoder.linear1.bias, encoder.linear2.bias):
        nn.init.normal_(bias)
    plain = nn.Sequential(encoder.linear1, nn.ReLU(), encoder.linear2, nn.ReLU())
    found, expected = (
        (outputs.detach(), *torch.autograd.grad((outputs * weight).sum(), list(encoder.parameters())))
        for outputs in (encoder(vectors), plain(vectors))
    )
    torch.testing.assert_close(found, expected)
    with torch.no_grad():
        torch.testing.assert_close(encoder(vectors), expected[0])
