"""The aesthetic predictor's layers: the recorded head, and what is refused."""

import pytest
import torch
from rewards_clip.clip_cases import recorded

from headwater_rewards_clip.aesthetic import aesthetic_score, affine_head


@pytest.fixture
def layers():
    found = recorded("aesthetic")
    return {k.removeprefix("tiny/mlp."): v for k, v in found.items() if k.startswith("tiny/mlp.")}


def unit_features(width=16):
    generator = torch.Generator().manual_seed(0)
    return torch.nn.functional.normalize(torch.randn(5, width, generator=generator), dim=-1)


def test_the_affine_map_is_the_five_layers_one_after_another(layers):
    x = features = unit_features()
    for place in (0, 2, 4, 6, 7):
        x = torch.nn.functional.linear(
            x, layers[f"layers.{place}.weight"], layers[f"layers.{place}.bias"]
        )
    found = aesthetic_score(features, affine_head(layers))
    torch.testing.assert_close(found, x.squeeze(-1), rtol=0, atol=1e-5)


def test_features_are_normalised_first(layers):
    head = affine_head(layers)
    features = unit_features()
    torch.testing.assert_close(aesthetic_score(7 * features, head), aesthetic_score(features, head))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda s: s.pop("layers.4.bias"), "missing: layers.4.bias"),
        (lambda s: s.update({"layers.1.weight": torch.zeros(1)}), "not known: layers.1.weight"),
        (
            lambda s: s.update({"layers.2.weight": torch.zeros(128, 9)}),
            "layers.2: expected a weight of 1024",
        ),
        (lambda s: s.update({"layers.2.bias": torch.zeros(9)}), "layers.2: expected"),
        (
            lambda s: s.update(
                {"layers.7.weight": torch.zeros(2, 16), "layers.7.bias": torch.zeros(2)}
            ),
            "layers.7: expected one output, got 2",
        ),
    ],
)
def test_other_layers_are_refused(layers, change, what):
    change(layers)
    with pytest.raises(ValueError, match=what):
        affine_head(layers)
