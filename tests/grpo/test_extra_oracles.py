"""Advantages, best-of-n, windows and ratios against recorded outputs of public trainers.

Cases: oracles/grpo_extra.json (those of JAGG are in tests/jagg).
"""

import json
from pathlib import Path

import pytest
import torch

from headwater_grpo import advantages, ratios, windows
from headwater_grpo.steps import gaussian_log_prob

DATA = json.loads((Path(__file__).parent / "oracles" / "grpo_extra.json").read_text())
CASES = {case["id"]: case for case in DATA["cases"]}


def case(name):
    found = CASES[name]
    return found["inputs"], found["outputs"]


def tensor(entry):
    dtype = getattr(torch, entry["dtype"])
    return torch.tensor(entry["data"], dtype=dtype).reshape(entry["shape"])


def double(values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(("scale", "name"), [("global", "True"), ("group", "False")])
def test_flow_grpo_advantages(scale, name):
    given, expected = case(f"adv/flow_grpo/global_std{name}")
    found = advantages.group_advantages(
        double(given["rewards"]), given["prompts"], scale, epsilon=1e-4
    )
    assert torch.allclose(found, tensor(expected["advantages_1d"]), rtol=1e-12, atol=1e-12)
    repeated = tensor(expected["advantages"])  # the trainer repeats rewards over the steps
    assert torch.allclose(found[:, None].expand_as(repeated), repeated, rtol=1e-12, atol=1e-12)


def test_dance_grpo_advantages():
    given, expected = case("adv/dancegrpo/group4")
    rewards = tensor(given["rewards"])
    groups = [i // given["num_generations"] for i in range(len(rewards))]
    found = advantages.group_advantages(rewards, groups, unbiased=True, epsilon=1e-8)
    assert torch.allclose(found, tensor(expected["advantages"]), rtol=1e-5, atol=1e-7)


def test_flow_factory_gdpo_advantages():
    given, expected = case("adv/flow_factory/compute_gdpo/global_stdTrue")
    found = advantages.each_then_sum(
        {key: double(values) for key, values in given["rewards"].items()},
        given["weights"],
        given["prompts"],
        "group",
        epsilon=1e-6,
        floor="max",
        normalise_batch=True,
    )
    assert torch.allclose(found, tensor(expected["advantages"]), rtol=1e-12, atol=1e-12)


def test_best_of_n_keeps_the_recorded_samples():
    given, expected = case("bestofn/dancegrpo/4of8")
    scores = tensor(given["total_scores"])
    kept = advantages.best_of(scores, [0] * len(scores), given["bestofn"])
    recorded = {*expected["top_indices"], *expected["bottom_indices"]}
    assert set(kept.nonzero().flatten().tolist()) == recorded


def test_the_sliding_window_of_mix_grpo_never_shrinks_or_empties():
    """The public code lets windows run off the end: [6, 7], [7], []. The paper's rule does not.

    Ours follows the paper, l <- min(l + s, T - w). Where the recorded window is whole, the two
    agree; after the last whole one, ours begins anew where the code shrinks for four positions.
    """
    given, expected = case("window/mixgrpo/progressive_overlap_rollback")
    p = given["params"]

    def ours(update):
        start = windows.progressive_start(
            update,
            p["group_size"],
            p["max_timesteps"],
            p["prog_overlap_step"],
            p["iters_per_group"],
            roll_back=p["roll_back"],
        )
        return list(windows.window_at(start, p["group_size"]))

    recorded = expected["windows"]
    shrunk = next(k for k, window in enumerate(recorded) if len(window) < p["group_size"])
    assert [] in recorded
    assert [ours(k) for k in range(shrunk)] == recorded[:shrunk]
    assert ours(shrunk) == recorded[0]
    assert all(len(ours(k)) == p["group_size"] for k in range(given["iterations"]))


def test_the_progressive_window_of_verl():
    given, expected = case("window/verl_omni/progressive")
    low, high = given["sde_window_range"]
    size = given["sde_window_size"]
    for step, window in zip(given["global_steps"], expected["windows"], strict=True):
        start = low + windows.progressive_start(
            step, size, high - low, size, given["iters_per_group"], roll_back=False
        )
        assert [start, start + size] == window


def test_flow_grpo_ratio_and_loss():
    given, expected = case("ratio/flow_grpo/rationormFalse")
    new, old = tensor(given["new_log_prob"]), tensor(given["old_log_prob"])
    std = given["std_dev_t"] * given["sqrt_neg_dt"]
    again = gaussian_log_prob(tensor(given["prev_sample"]), tensor(given["mu_new"]), std)
    assert torch.allclose(again, new, rtol=1e-7)  # recorded with a float32 log(2 pi)
    ratio = torch.exp(new - old)
    assert torch.allclose(ratio, tensor(expected["ratio"]), rtol=1e-12)
    clipped = tensor(given["advantages"]).clamp(-given["adv_clip"], given["adv_clip"])
    loss = ratios.clipped_loss(ratio, clipped, given["clip"], given["clip"]).mean()
    assert torch.allclose(loss, tensor(expected["policy_loss"]), rtol=1e-12)


def test_grpo_guard_ratio_and_loss():
    given, expected = case("ratio/verl_omni/grpo_guard")
    std, h = given["std_dev_t"] * given["sqrt_neg_dt"], given["sqrt_neg_dt"]
    old, new = tensor(given["mu_old"]), tensor(given["mu_new"])
    noise = ratios.fresh_noise(tensor(given["prev_sample"]), old, std)
    log_ratio = ratios.guard_log_ratio(new, old, noise)
    other = ratios.guard_log_ratio_of(
        tensor(given["new_log_prob"]), tensor(given["old_log_prob"]), new, old, std
    )
    assert torch.allclose(log_ratio, other, rtol=1e-12, atol=1e-13)
    ratio = torch.exp(log_ratio)
    assert float(ratio.mean()) == pytest.approx(expected["ratio_mean"], rel=1e-12)
    clipped = tensor(given["advantages"]).clamp(-given["adv_clip"], given["adv_clip"])
    loss = ratios.clipped_loss(ratio, clipped, given["clip"], given["clip"]).mean() / (h * h)
    assert torch.allclose(loss, tensor(expected["policy_loss"]), rtol=1e-12)


def test_every_recorded_case_is_in_a_test_above_by_name():
    source = Path(__file__).read_text()
    for name in CASES:
        family = name.split("global_std")[0]
        assert family in source, name
    assert len(CASES) == len(DATA["cases"])
