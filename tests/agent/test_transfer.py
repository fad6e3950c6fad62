"""Transfer: new features get new weights, and old weights keep theirs by name."""

from dataclasses import replace

import pytest
import torch
from support.playing import token_spec
from torch import nn

from engram import Fast, LSTMWrapper
from engram.agent.transfer import load_weights, read_features, with_new_features
from engram.env.spec import Feature
from engram.settings import UserError

OLD = replace(token_spec(), features=(Feature(3, "wall", 1.0), Feature(0, "mine", 2.0)))


def test_old_features_keep_ids_and_normalisations_and_new_ones_get_free_ids() -> None:
    new = with_new_features(OLD, [Feature(0, "lava", 5.0), Feature(9, "mine", 9.0), Feature(7, "ore", 6.0)])
    assert new.features == (*OLD.features, Feature(1, "lava", 5.0), Feature(7, "ore", 6.0))


def test_a_policy_has_at_most_255_features() -> None:
    full = OLD.with_features(tuple(Feature(i, f"feature_{i}", 1.0) for i in range(255)))
    with pytest.raises(UserError, match="no id is free for lava"):
        with_new_features(full, [Feature(0, "lava", 1.0)])


def test_weights_of_old_features_are_copied_and_those_of_new_ones_stay_fresh() -> None:
    old, new = Fast(OLD), Fast(with_new_features(OLD, [Feature(0, "lava", 5.0)]))
    fresh = new.encoder.conv1.conv.weight.detach().clone()
    load_weights(new, old.state_dict(), OLD)
    weight = new.encoder.conv1.conv.weight
    assert torch.equal(weight[:, :2], old.encoder.conv1.conv.weight)
    assert torch.equal(weight[:, 2:], fresh[:, 2:])
    assert torch.equal(new.lstm.weight_hh_l0, old.lstm.weight_hh_l0)


def test_the_l2_loss_measures_new_weights_from_their_initial_values() -> None:
    old, new = Fast(OLD), Fast(with_new_features(OLD, [Feature(0, "lava", 5.0)]))
    old.l2_init_loss()
    with torch.no_grad():
        old.lstm.weight_hh_l0.add_(0.5)
    load_weights(new, old.state_dict(), OLD)
    torch.testing.assert_close(new.l2_init_loss(), old.l2_init_loss())


def test_features_in_a_different_order_are_an_error() -> None:
    turned = Fast(OLD.with_features(OLD.features[::-1]))
    with pytest.raises(UserError, match="in their old order"):
        load_weights(turned, Fast(OLD).state_dict(), OLD)


class Flattens(LSTMWrapper):
    """A layer with more than one entry per feature."""

    def __init__(self, env):
        super().__init__(env)
        self.wide = nn.Linear(25 * len(self.env_spec.features), 128)


def test_growth_that_features_do_not_explain_is_an_error() -> None:
    with pytest.raises(UserError, match=r"wide\.weight was \[128, 50\] and is now \[128, 75\]"):
        load_weights(Flattens(with_new_features(OLD, [Feature(0, "lava", 5.0)])), Flattens(OLD).state_dict(), OLD)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"wall": {"id": 255}}, "wall has the id 255"),
        ({"wall": {"id": 1}, "mine": {"id": 1}}, "wall and mine have the same id, 1"),
        ([Feature(0, "wall", 1.0), Feature(1, "wall", 1.0)], "two are named wall"),
    ],
)
def test_ambiguous_features_are_an_error(features, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_features(features)


def test_the_default_normalisation_is_255() -> None:
    assert read_features({"wall": {"id": 4}}) == (Feature(4, "wall", 255.0),)
