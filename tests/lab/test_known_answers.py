"""Estimators whose likeness to the exact gradient is known beforehand."""

import math

import pytest

from headwater_lab.compare import Options, compare

NAMED = {"rollouts": 2, "draws": 6}


def rows(file, estimators, **options):
    found = compare(file, estimators, options=Options(**{**NAMED, **options})).summary
    return {row["name"]: row for row in found["estimators"]}


def test_the_reference_beside_itself_has_cosine_one_ratio_one_and_no_bias(run_file):
    row = rows(run_file(), "bptt")["bptt"]
    assert row["cosine"]["mean"] == pytest.approx(1, abs=1e-14)
    assert row["cosine_one"]["mean"] == pytest.approx(1, abs=1e-14)
    assert row["cosine_expected"]["mean"] == pytest.approx(1, abs=1e-14)
    assert row["norm_ratio"]["mean"] == pytest.approx(1, abs=1e-14)
    assert row["bias"]["mean"] == 0
    assert row["variance"]["mean"] == 0
    assert [step["step"] for step in row["steps"]] == [0, 1, 2, 3, 4]
    for part in (*row["steps"], *row["blocks"]):
        assert part["cosine"]["mean"] == pytest.approx(1, abs=1e-12)
        assert part["norm_ratio"]["mean"] == pytest.approx(1, abs=1e-12)


def test_a_multiple_has_its_factor_as_ratio_and_its_distance_from_one_as_bias(run_file):
    found = rows(run_file(), "scaled{factor=3.0},scaled{factor=-0.5}")
    for factor in (3.0, -0.5):
        row = found[f"scaled{{factor={factor}}}"]
        assert row["cosine"]["mean"] == pytest.approx(math.copysign(1, factor), abs=1e-12)
        assert row["norm_ratio"]["mean"] == pytest.approx(abs(factor), rel=1e-12)
        assert row["bias"]["mean"] == pytest.approx(abs(factor - 1), rel=1e-12)
        assert row["cosine"]["se"] == pytest.approx(0, abs=1e-12)
        assert row["variance"]["mean"] == 0
        assert not row["draws_indices"]
        for block in row["blocks"]:
            assert block["norm_ratio"]["mean"] == pytest.approx(abs(factor), rel=1e-12)


def test_a_rotation_has_the_cosine_of_its_angle_and_no_rows_by_step(run_file):
    row = rows(run_file(), "rotated{degrees=25.0}")["rotated{degrees=25.0}"]
    angle = math.radians(25)
    assert row["cosine"]["mean"] == pytest.approx(math.cos(angle), rel=1e-12)
    assert row["norm_ratio"]["mean"] == pytest.approx(1, rel=1e-12)
    assert row["bias"]["mean"] == pytest.approx(2 * math.sin(angle / 2), rel=1e-12)
    assert row["steps"] == []


def test_noise_that_averages_to_the_exact_gradient_is_variance_and_not_bias(run_file):
    spread = 0.5
    row = rows(run_file(), f"noisy{{spread={spread}}}", rollouts=3, draws=12)
    row = row[f"noisy{{spread={spread}}}"]
    assert row["cosine"]["mean"] == pytest.approx(1, abs=1e-12)
    assert row["draws"] == 12
    # From the signs alone: e_m = w_m g, so every number is one of the weights w_m.
    squares, variances, ratios, noises = [], [], [], []
    for rollout in range(3):
        w = [each["diagnostics"]["factor"] for each in row["each"] if each["rollout"] == rollout]
        assert set(w) == {1 - spread, 1 + spread}
        mean = sum(w) / 12
        variance = sum((v - mean) ** 2 for v in w) / 11
        squares.append((mean - 1) ** 2 - variance / 12)
        variances.append(variance)
        ratios.append(mean)
        noises.append(math.sqrt(variance / (mean**2 - variance / 12)))
    assert row["variance"]["mean"] == pytest.approx(sum(variances) / 3, rel=1e-10)
    assert row["norm_ratio"]["mean"] == pytest.approx(sum(ratios) / 3, rel=1e-10)
    assert row["bias"]["squared"]["mean"] == pytest.approx(sum(squares) / 3, rel=1e-10)
    assert row["noise"]["mean"] == pytest.approx(sum(noises) / 3, rel=1e-10)


def test_one_draw_of_an_estimator_that_draws_tells_neither_bias_nor_variance(run_file):
    row = rows(run_file(), "noisy", draws=1)["noisy"]
    assert row["bias"]["mean"] is None
    assert row["variance"]["mean"] is None
    assert row["cosine"]["mean"] == pytest.approx(1, abs=1e-12) or row["cosine"]["n"] == 0


def test_truncated_backpropagation_shares_the_parts_of_its_steps(run_file):
    row = rows(run_file(), "draft-k{k=2}")["draft-k{k=2}"]
    assert [step["step"] for step in row["steps"]] == [3, 4]
    for step in row["steps"]:
        assert step["cosine"]["mean"] == pytest.approx(1, abs=1e-12)
        assert step["norm_ratio"]["mean"] == pytest.approx(1, abs=1e-12)
    assert row["cosine"]["mean"] < 0.9999


def test_network_work_is_that_of_the_estimator_alone(run_file):
    file = run_file()
    for by_step in (True, False):
        found = rows(file, "bptt,draft-k{k=2},leapalign,draft-lv{n=3}", by_step=by_step)
        work = {name: (r["forwards"]["mean"], r["backwards"]["mean"]) for name, r in found.items()}
        assert work == {
            "bptt": (5, 5),
            "draft-k{k=2}": (2, 2),
            "leapalign": (2, 2),
            "draft-lv{n=3}": (3 + 4, 4),  # three plain forwards, then four samples for each
        }
