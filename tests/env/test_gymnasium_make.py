"""Settings that name no environment get a suggestion."""

import gymnasium
import pytest

from engram.env import gymnasium as adapter
from engram.env.settings import Gym
from engram.settings import UserError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"id": "Cartpole-v1"}, "env.id: .*Nearest: CartPole-v1"),
        ({"id": "CartPole-v9"}, r"env.id: .*Nearest: CartPole-v[01]"),
        ({"id": "ALE/Pong-v5"}, "env.id: .*ale_py:ALE/Pong-v5"),
        (
            {"id": "no_such_package:Cave-v0"},
            "env.id: .*needs a package that is not installed: No module named 'no_such_pack",
        ),
        ({"id": "CartPole-v1", "kwargs": {"gravty": 1}}, "env.kwargs: .*gravty"),
        ({"id": "CartPole-v1", "wrappers": ["mask_velocty"]}, "did you mean mask_velocity"),
    ],
)
def test_settings_that_cannot_be_built_are_explained(settings, message):
    with pytest.raises(UserError, match=message):
        adapter.spec(Gym(**settings))


def test_a_missing_optional_package_is_named(monkeypatch):
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))

    def needs_box2d():
        raise gymnasium.error.DependencyNotInstalled('Box2D is not installed, run `pip install "gymnasium[box2d]"`')

    gymnasium.register("engram-test/Lander-v0", needs_box2d)
    with pytest.raises(UserError, match=r"env.id: .*needs a package that is not installed: Box2D.*gymnasium\[box2d\]"):
        adapter.spec(Gym(id="engram-test/Lander-v0"))
