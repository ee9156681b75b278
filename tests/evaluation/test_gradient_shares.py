"""Each reward's share of an endpoint gradient, against gradients taken one reward at a time."""

import pytest
import torch

from headwater.composition import compose
from headwater.geometry import rollout_draws
from headwater.stage import open_stage
from headwater.trainer import Trainer

TWO = ["reward.red={use='mean-colour', weight=-0.5}"]


def logged(path, *overrides):
    metrics = Trainer(open_stage(compose(path, [*TWO, *overrides]), "cpu")).step(0).metrics
    start = "algorithm/share/"
    return {n.removeprefix(start): v for n, v in metrics.items() if n.startswith(start)}


def by_hand(path):
    """Norm of d(w_k r_k)/d image of every sample, summed, as fractions."""
    run = compose(path, TWO)
    stage, sizes = open_stage(run, "cpu"), {}
    for draw in rollout_draws(run, 0):
        rollout = stage.sample([draw], 0)
        for key, named in run.rewards.items():
            images = stage.backbone.decode(rollout.state(rollout.steps)).requires_grad_()
            weight = run.file.rewards[key].core["weight"]
            (gradient,) = torch.autograd.grad(weight * named.plugin.score(images).sum(), images)
            sizes[key] = sizes.get(key, 0.0) + float(gradient.norm())
    return {key: size / sum(sizes.values()) for key, size in sizes.items()}


@pytest.mark.parametrize("size", [1, 3, 8])
def test_the_shares_are_those_of_the_gradients_in_the_image(toy_file, size):
    expected = by_hand(toy_file)
    found = logged(toy_file, f"prompts.micro_batch={size}")
    assert found == pytest.approx(expected, abs=1e-12)
    assert sum(found.values()) == pytest.approx(1, abs=1e-12)
    assert found["brightness"] != found["red"]


def test_logging_them_changes_no_gradient(toy_file, monkeypatch):
    gradients = []
    for plain in (False, True):
        if plain:  # the rewards see the images themselves
            monkeypatch.setattr("headwater.stage.watched", lambda images, key, sizes: images)
        trainer = Trainer(open_stage(compose(toy_file, TWO), "cpu"))
        trainer._gradient(0, measure_memory=False)
        gradients.append(torch.cat([p.grad.flatten() for p in trainer.parameters.values()]))
    assert torch.equal(*gradients)


def test_a_single_reward_has_no_share(toy_file):
    metrics = Trainer(open_stage(compose(toy_file), "cpu")).step(0).metrics
    assert not [name for name in metrics if "share" in name]
