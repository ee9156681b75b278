"""One stochastic step against outputs recorded from six public trainers.

Cases and how to read them: oracles/sde_steps.json. Each runs in its own dtype, through the pure
functions of `headwater_grpo.steps` and, where sigmas are those of a schedule, the dynamics too.
"""

import json
import math
from pathlib import Path

import pytest
import torch

from headwater_grpo import steps
from headwater_grpo.dynamics import Cps, DanceSde, FlowSde

DATA = json.loads((Path(__file__).parent / "oracles" / "sde_steps.json").read_text())
CASES = {case["id"]: case for case in DATA["cases"]}
WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
INPUTS = {
    "x": ("latents", "sample"),
    "v": ("model_output", "noise_pred"),
    "next": ("prev_sample", "next_latents"),
    "noise": ("noise",),
}
GRADIENTS = (
    "grad_sum_log_prob_wrt_model_output",
    "grad_sum_log_prob_wrt_noise_pred",
)
KINDS = {
    "sde": "sde",
    "Flow-SDE": "sde",
    "dance_sde": "dance",
    "Dance-SDE": "dance",
    "cps": "cps",
    "CPS": "cps",
    "ODE": "ode",
}


def tensor(entry, dtype):
    if isinstance(entry, str):
        entry = DATA["tensors"][entry]
    data = [WORDS.get(v, v) if isinstance(v, str) else v for v in entry["data"]]
    return torch.tensor(data, dtype=torch.float64).reshape(entry["shape"]).to(dtype)


class Case:
    """The numbers of a case under one set of names."""

    def __init__(self, case):
        self.case, self.repo, args = case, case["repo"], case["args"]
        self.dtype = torch.float32 if case["precision"] == "float32" else torch.float64
        schedule = DATA["schedules"][case["schedule"]]
        self.sigmas, self.N = schedule["sigmas"], schedule["N"]
        index = (
            next(args[k] for k in ("timestep_index", "index") if k in args)
            if ("timestep_index" in args or "index" in args)
            else case["timestep_index"]
        )
        self.i = index[0] if isinstance(index, list) else index
        self.sigma = case.get("sigma", self.sigmas[self.i])
        self.sigma_next = case.get("sigma_next", self.sigmas[self.i + 1])
        if self.repo.startswith("flow_factory"):  # sigmas are its float32 timesteps over 1000
            self.sigma = self._over_1000(args["timestep"][0])
            self.sigma_next = self._over_1000(args["timestep_next"][0])
        self.sigma_max = case.get("sigma_max_substitute", self.sigmas[1])
        self.level = args.get("noise_level", args.get("eta"))
        self.kind = self._kind(args)
        self.normaliser = args.get("include_logprob_normalizer", self.repo != "mixgrpo_dance")

    def _over_1000(self, time):
        return float(torch.tensor(time, dtype=self.dtype) / 1000)

    def _kind(self, args):
        if self.repo in ("dancegrpo", "mixgrpo_dance"):
            return "dance" if args["sde_solver"] else "ode"
        if self.repo == "mixgrpo_flow":
            return "ode" if args["determistic"] else "sde"
        return KINDS[args.get("sde_type", args.get("dynamics_type", "sde"))]

    def input(self, name):
        given = self.case["inputs"]
        entry = next((given[k] for k in INPUTS[name] if given.get(k) is not None), None)
        return None if entry is None else tensor(entry, self.dtype)

    def output(self, *names):
        entry = next((self.case["outputs"][k] for k in names if k in self.case["outputs"]), None)
        return tensor(entry, self.dtype) if isinstance(entry, dict) else entry

    def scale(self):
        if self.kind == "dance":
            return self.level
        return steps.flow_sde_scale(self.sigma, self.level, self.sigma_max)

    def step(self):
        """mean, std, sensitivity"""
        x, v, pair = self.input("x"), self.input("v"), (self.sigma, self.sigma_next)
        if self.kind == "ode":
            return steps.ode_mean(x, v, *pair), 0.0, pair[1] - pair[0]
        if self.kind == "cps":
            std = steps.cps_std(self.sigma_next, self.level)
            return steps.cps_mean(x, v, *pair, std), std, steps.cps_sensitivity(*pair, std)
        g = self.scale()
        mean = steps.sde_mean(x, v, *pair, g)
        return mean, steps.step_std(*pair, g), steps.sde_sensitivity(*pair, g)

    def score(self, next, mean, std, sensitivity):
        """log_prob, its gradient"""
        if self.kind == "cps":
            return steps.cps_log_prob(next, mean), steps.cps_log_prob_grad(next, mean, sensitivity)
        return (
            steps.gaussian_log_prob(next, mean, std, normaliser=self.normaliser),
            steps.gaussian_log_prob_grad(next, mean, std, sensitivity),
        )

    def close(self, got, expected):
        got = torch.as_tensor(got, dtype=self.dtype)
        if self.dtype == torch.float64:
            rtol, atol = 1e-12, 1e-12
        else:
            late = self.i >= self.N - 2
            rtol = 2e-4 if late else 1e-5
            atol = rtol * float(expected.abs().max())
        return torch.allclose(got, expected.reshape(got.shape), rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_recorded_step(name):
    case = Case(CASES[name])
    mean, std, sensitivity = case.step()
    expected_mean = case.output("prev_sample_mean", "next_latents_mean")
    outputs = CASES[name]["outputs"]
    deterministic = case.kind == "ode" or std == 0
    # MixGRPO's deterministic steps return x + dt v as the sample, and in prev_sample_mean the
    # mean of the SDE it did not take. Ours has one mean, and no log-probability.
    mixed = case.repo.startswith("mixgrpo") and case.kind == "ode"
    if mixed:
        expected_mean = case.output("prev_sample")
    assert case.close(mean, expected_mean)
    if "pred_original_sample" in outputs:
        image = steps.predicted_image(case.input("x"), case.input("v"), case.sigma)
        assert case.close(image, case.output("pred_original_sample"))
    if case.kind == "ode":
        with pytest.raises(ValueError, match="deterministic"):
            steps.gaussian_log_prob(mean, mean, std)
        return
    check_std(case, std)
    next = case.input("next")
    if next is None:
        next = steps.take(mean, std, case.input("noise"))
        recorded = case.output("prev_sample", "next_latents")
        if recorded is not None:
            assert case.close(next, recorded)
            next = recorded
    if deterministic and case.kind != "cps":
        return
    log_prob, gradient = case.score(next, mean, std, sensitivity)
    assert case.close(log_prob, case.output("log_prob"))
    expected = case.output(*GRADIENTS)
    if expected is not None:
        assert case.close(gradient, expected)


def check_std(case, std):
    """The recorded std is the step's, or g alone where the trainer returns it so."""
    recorded = case.output("std", "std_dev_t")
    if recorded is None:
        return
    values = torch.as_tensor(recorded, dtype=case.dtype).flatten()
    family = "flow_factory" if case.repo.startswith("flow_factory") else case.repo
    bare = {"flow_factory": ("sde", "dance"), "verl_omni": ("sde",), "flow_grpo_2025_11": ("sde",)}
    if case.kind in bare.get(family, ()):
        std = std / math.sqrt(case.sigma - case.sigma_next)
    assert case.close(values, torch.full_like(values, std))


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_dynamics_take_the_same_step(name):
    case = Case(CASES[name])
    if case.kind == "ode":
        from headwater.dynamics import Ode

        dynamics = Ode()
    else:
        classes = {"sde": FlowSde, "dance": DanceSde, "cps": Cps}
        dynamics = classes[case.kind](case.level)
    sigmas = torch.tensor(case.sigmas, dtype=torch.float64)
    sigmas[case.i], sigmas[case.i + 1] = case.sigma, case.sigma_next
    case.sigma_max = float(sigmas[1])
    x, v = case.input("x"), case.input("v")
    transition = dynamics.transition(x, v, case.i, sigmas)
    mean, std, sensitivity = case.step()
    rtol = 1e-12 if case.dtype == torch.float64 else 1e-6
    assert torch.allclose(transition.mean, mean, rtol=rtol, atol=rtol)
    assert transition.std == pytest.approx(std, rel=1e-9)
    if case.kind != "ode":
        assert dynamics.sensitivity(case.i, sigmas) == pytest.approx(sensitivity, rel=1e-9)


def test_every_recorded_case_is_here():
    assert len(CASES) == len(DATA["cases"]) == 70
    assert {Case(c).kind for c in DATA["cases"]} == {"sde", "dance", "cps", "ode"}
