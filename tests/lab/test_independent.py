"""Rows of the table, formed again from raw gradients and from an unrolled sampling."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.func import functional_call

from headwater.composition import compose
from headwater.geometry import draws_of
from headwater.randomness import generator_of
from headwater.stage import open_stage
from headwater_jagg.probe import probe
from headwater_lab.compare import Options, compare

JAGG = Path(__file__).parents[2] / "plugins" / "jagg" / "examples" / "jagg.toml"
ROLLOUTS, DRAWS = 2, 5


def gradient(stage, batches, samples, generators):
    """The gradient of one rollout as one vector, by the stage that trains."""
    parameters = list(stage.backbone.trainable().values())
    for p in parameters:
        p.grad = torch.zeros_like(p)
    for batch, generator in zip(batches, generators, strict=True):
        stage.backward(stage.sample(batch, 0), generator, samples)
    return np.concatenate([p.grad.flatten().numpy() for p in parameters])


def batches_of(stage, rollout):
    draws = draws_of(stage.run.file, stage.run.prompts, rollout)
    return draws, [draws[:2], draws[2:]]


def mean_se(values):
    return np.mean(values), np.std(values, ddof=1) / math.sqrt(len(values))


@pytest.mark.parametrize("draws_key", [1, 2])
def test_a_row_follows_from_the_raw_gradients(run_file, draws_key):
    """All gradients held at once, the definitions written out in numpy."""
    file, label = run_file(), f"leapalign{{coupling=0.5,draws={draws_key}}}"
    stages = [
        open_stage(compose(file, [f"estimator={table}"]), "cpu")
        for table in ("{use='bptt'}", f"{{use='leapalign',coupling=0.5,draws={draws_key}}}")
    ]
    cosines, ones, ratios, biases, variances, expected = [], [], [], [], [], []
    for rollout in range(ROLLOUTS):
        draws, batches = batches_of(stages[0], rollout)
        g = gradient(stages[0], batches, len(draws), [None, None])
        parts = [0, 1] if draws_key == 2 else [0, 0]
        e = np.stack(
            [
                gradient(
                    stages[1],
                    batches,
                    len(draws),
                    [generator_of(3, "compare", rollout, draw, part) for part in parts],
                )
                for draw in range(DRAWS)
            ]
        )
        mean = e.mean(axis=0)
        scatter = e.var(axis=0, ddof=1).sum()
        norm = np.linalg.norm
        cosines.append(mean @ g / norm(mean) / norm(g))
        ones.append(np.mean([v @ g / norm(v) / norm(g) for v in e]))
        ratios.append(norm(mean) / norm(g))
        biases.append((norm(mean - g) ** 2 - scatter / DRAWS) / norm(g) ** 2)
        variances.append(scatter / norm(g) ** 2)
        dots = e @ g
        square = dots.mean() ** 2 - dots.var(ddof=1) / DRAWS
        expected.append(math.sqrt(max(0, square) / (norm(mean) ** 2 - scatter / DRAWS)) / norm(g))
    found = compare(file, label, options=Options(ROLLOUTS, DRAWS)).summary
    (row,) = found["estimators"]
    wanted = {
        "cosine": cosines,
        "cosine_one": ones,
        "norm_ratio": ratios,
        "variance": variances,
        "cosine_expected": expected,
    }
    for key, values in wanted.items():
        assert (row[key]["mean"], row[key]["se"]) == pytest.approx(mean_se(values), rel=1e-9), key
    squared = row["bias"]["squared"]
    assert (squared["mean"], squared["se"]) == pytest.approx(mean_se(biases), rel=1e-8)


def unrolled(stage, batch):
    """Each step's part of the gradient of a micro-batch's mean loss: one copy of the weights a
    step, plain autograd through the whole sampling; and |dL/dx| at the end of each step."""
    network, run = stage.run.backbone.plugin.network, stage.run
    rollout = stage.sample(batch, 0)
    x, text = rollout.latents[0], rollout.batch.conditioning.rows
    copies, states = [], []
    for i in range(rollout.steps):
        copy = {n: p.detach().clone().requires_grad_() for n, p in network.named_parameters()}
        copies.append(copy)
        sigma = rollout.sigmas[i].expand(len(batch))
        h = float(rollout.sigmas[i]) - float(rollout.sigmas[i + 1])
        x = x - h * functional_call(network, copy, (x, sigma, text))
        x.requires_grad_() if not x.requires_grad else x.retain_grad()
        states.append(x)
    (scores,) = stage.callers["brightness"](
        images=run.backbone.plugin.decode(x), batch=rollout.batch
    )
    (-scores.mean()).backward()
    parts = [torch.cat([p.grad.flatten() for p in copy.values()]) for copy in copies]
    each = [state.grad.flatten(1).norm(dim=1).mean() * len(batch) for state in states]
    return parts, [float(value) for value in each]


def test_the_reference_by_step_is_that_of_an_unrolled_sampling(run_file):
    file = run_file()
    stage = open_stage(compose(file), "cpu")
    _, batches = batches_of(stage, 0)
    both = [unrolled(stage, batch) for batch in batches]
    found = compare(file, "bptt", options=Options(1, 1)).summary["reference"]
    for step in found["steps"]:
        i = step["step"]
        norms = [float(parts[i].norm()) for parts, _ in both]
        assert step["norm"]["mean"] == pytest.approx(sum(norms) / 2, rel=1e-10)
        states = [state[i] for _, state in both]
        assert step["state_gradient"]["mean"] == pytest.approx(sum(states) / 2, rel=1e-10)
    whole = sum(sum(parts) for parts, _ in both) / 2
    assert found["norm"]["mean"] == pytest.approx(float(whole.norm()), rel=1e-10)


def test_an_active_step_is_compared_with_the_unrolled_part_of_that_step(run_file):
    """ReFL on the sample: one active step tau with c = -h g, where the exact one has passed on."""
    file, label = run_file({"micro_batch = 2": "micro_batch = 4"}), "refl{endpoint='sample'}"
    sets = ["estimator={use='refl',endpoint='sample'}"]
    stage = open_stage(compose(file, sets), "cpu")
    draws, _ = batches_of(stage, 0)
    parts, _ = unrolled(stage, draws)
    (row,) = compare(file, label, options=Options(1, 4)).summary["estimators"]
    drawn = {int(each["diagnostics"]["step"]): each["draw"] for each in row["each"]}
    assert {step["step"] for step in row["steps"]} == set(drawn)
    for step in row["steps"]:
        i = step["step"]
        generator = generator_of(3, "compare", 0, drawn[i], 0)
        own = torch.from_numpy(gradient(stage, [draws], 4, [generator]))
        cosine = float(own @ parts[i] / own.norm() / parts[i].norm())
        assert step["cosine"]["mean"] == pytest.approx(cosine, rel=1e-9)
        assert step["norm_ratio"]["mean"] == pytest.approx(float(own.norm() / parts[i].norm()))


SMALL = [
    *("rollout.steps=7", "rollout.guidance=1.0"),
    *("prompts.per_step=2", "prompts.group=3", "prompts.micro_batch=6"),
]


def test_jagg_by_group_agrees_with_its_own_probe():
    """Two programs that share no code: one takes Jacobian products, the other runs the engine."""
    table = "estimator={use='jagg',window=3,routed=1.0}"
    wanted = probe(JAGG, [*SMALL, table], rollouts=2)["groups"]
    found = compare(JAGG, "exact,jagg{window=3,routed=1.0}", SMALL, Options(2, 1)).summary
    exact, row = found["estimators"]
    assert exact["cosine"]["mean"] == pytest.approx(1, abs=1e-12)
    assert exact["bias"]["mean"] == 0
    assert [group["steps"] for group in row["groups"]] == [group["steps"] for group in wanted]
    for group, other in zip(row["groups"], wanted, strict=True):
        assert group["cosine"]["mean"] == pytest.approx(other["cosine"]["mean"], abs=1e-5)
        assert group["cosine"]["se"] == pytest.approx(other["cosine"]["se"], abs=1e-5)
        assert group["norm_ratio"]["mean"] == pytest.approx(other["norm_ratio"]["mean"], rel=1e-4)
    assert not row["draws_indices"]
    assert row["cosine"]["mean"] < 0.9999


def test_an_estimator_that_remembers_sees_a_rollout_before_the_first_that_counts():
    """A calibrated basis is fitted on one rollout and used on the next."""
    table = "window=3,routed=1.0"
    names = f"jagg{{{table}}},jagg{{{table},basis='calibrated'}}"
    found = compare(JAGG, names, SMALL, Options(1, 1)).summary["estimators"]
    linear, fitted = ([group["cosine"]["mean"] for group in row["groups"]] for row in found)
    assert all(abs(a - b) > 1e-6 for a, b in zip(linear, fitted, strict=True))
    assert found[1]["forwards"]["mean"] == found[0]["forwards"]["mean"], "no fit is counted"
