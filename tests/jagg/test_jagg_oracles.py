"""Recorded cases of a JAGG author's prototype (alpha linear in the index) and of the paper's alpha.

Sums of five float32 upstreams: 1e-5 relative to the largest value.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from headwater_jagg.basis import alphas, composites, linear_basis
from headwater_jagg.report import chord_distance, compare

CASES = json.loads((Path(__file__).parent / "oracles" / "jagg.json").read_text())["cases"]
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


def tensor(record: dict) -> Tensor:
    return torch.tensor(record["data"], dtype=getattr(torch, record["dtype"])).view(record["shape"])


def close(found: Tensor, record: dict) -> None:
    expected = tensor(record)
    assert found.dtype == expected.dtype
    tolerance = TOLERANCE[record["dtype"]]
    size = float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * size)


def gradients(case: dict, basis: Tensor) -> list[Tensor]:
    """Of A, b and c: one joint backward from the nodes' velocities."""
    given = case["inputs"]
    A, b, c = (tensor(given[name]).requires_grad_() for name in "Abc")
    z = tensor(given["latents"])  # (1, S, 2, 2)
    t = torch.tensor(given["timesteps"][0], dtype=z.dtype) / 1000
    s = tensor(case["outputs"]["upstream_s"])
    active = [0, len(t) - 1] if len(basis) == 2 else range(len(t))
    inner = [z[:, j] @ A + t[j] * b + c for j in active]
    outputs = inner if "linear" in case["id"] else [1.5 * torch.tanh(x) for x in inner]
    torch.autograd.backward(outputs, list(composites(basis, s)))
    return [A.grad, b.grad, c.grad]


def index_basis(size: int) -> Tensor:
    return linear_basis([float(-j) for j in range(size)])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_alphas_composites_and_gradients_are_the_recorded_ones(case) -> None:
    times, out = case["inputs"]["timesteps"][0], case["outputs"]
    s = tensor(out["upstream_s"])
    expected = torch.tensor(out["alpha_t_weighted"], dtype=torch.float64)
    torch.testing.assert_close(alphas(times), expected, rtol=0, atol=1e-12)
    by_time, by_index = linear_basis(times), index_basis(len(times))
    for basis, name in ((by_time, "t"), (by_index, "index")):
        for found, which in zip(composites(basis, s), ("base", "corr"), strict=True):
            close(found, out[f"s_{which}_{name}"])
    for basis, name in (
        (torch.eye(len(times), dtype=torch.float64), "exact_grad"),
        (by_time, "t_weighted_grad"),
        (by_index, "prototype_grad"),
    ):
        for found, key in zip(gradients(case, basis), "Abc", strict=True):
            close(found, out[name][key])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_cosine_and_relative_error_are_the_recorded_ones(case) -> None:
    """On the chord the recorded error is rounding, 1e-7: hence the absolute tolerance."""
    out = case["outputs"]
    exact = [tensor(out["exact_grad"][key]) for key in "Abc"]
    paper = [tensor(out["t_weighted_grad"][key]) for key in "Abc"]
    cosine, error, _ = compare(paper, exact)
    assert cosine == pytest.approx(out["cosine_t_weighted_exact"], abs=1e-12)
    assert error == pytest.approx(out["rel_err_t_weighted_vs_exact"], rel=1e-5, abs=1e-12)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_only_states_off_the_chord_make_an_error(case) -> None:
    states = tensor(case["inputs"]["latents"]).transpose(0, 1)
    distance = float(chord_distance(states, case["inputs"]["timesteps"][0]).max())
    assert (distance < 1e-6) == (case["outputs"]["rel_err_t_weighted_vs_exact"] < 1e-3)
    assert (distance < 1e-6) == ("chord" in case["id"])
