"""Every estimator and algorithm takes two optimizer steps on every family, LoRA and full.

The loop itself stops a run in which a trained tensor has no gradient, or only a zero one by the end
of the second update; these tests let it look.
"""

import pytest
import torch

from families.family_cases import BASE, FAMILIES
from headwater.composition import compose
from headwater.stage import open_stage
from headwater.trainer import Trainer

TOML = """
name = "family"
seed = 3
steps = 2
[backbone]
use = "{name}"
model = "{folder}"
[prompts]
file = "prompts.txt"
per_step = 2
micro_batch = 4
[rollout]
steps = 4
guidance = {guidance}
height = 32
width = 32
[reward.preference]
use = "tiny-preference"
[algorithm]
use = "direct"
margin = 2.0
[estimator]
use = "bptt"
[optimizer]
lr = 1e-3
"""
PROMPTS = """a red circle on a white background
a blue square on a grey background
two green triangles on a black background
"""
ENDPOINT = {
    "bptt": "{use='bptt'}",
    "draft-k": "{use='draft-k',k=2}",
    "draft-lv": "{use='draft-lv'}",
    "refl": "{use='refl'}",
    "drtune": "{use='drtune',k=2}",
    "leapalign": "{use='leapalign'}",
    "flowbp-sparse": "{use='flowbp-sparse',k=2}",
    "flowbp-bridge": "{use='flowbp-bridge',k=2}",
    "flowbp-lagrange": "{use='flowbp-lagrange'}",
    "surrogate": "{use='surrogate'}",
}
PER_STEP = {
    "flow-grpo": ("flow-grpo", "exact", "flow-sde"),
    "flow-grpo-fast": ("flow-grpo-fast", "exact", "cps"),
    "dance-grpo": ("dance-grpo", "exact", "dance-sde"),
    "mix-grpo": ("mix-grpo',window=2,strategy='random", "exact", "flow-sde"),
    "grpo-guard": ("grpo-guard", "exact", "flow-sde"),
    "jagg": ("flow-grpo", "jagg',window=3,routed=1.0,interpolate='linear", "dance-sde"),
}
QUICK = {("lora", "flowbp-lagrange"), ("full", "jagg")}
"""What every test run does; the rest of the table is `long`."""
CASES = [
    pytest.param(
        name,
        train,
        method,
        marks=() if (train, method) in QUICK else pytest.mark.long,
    )
    for name in FAMILIES
    for train in ("lora", "full")
    for method in (*ENDPOINT, *PER_STEP)
]


@pytest.fixture
def trainer_of(folders, tmp_path):
    (tmp_path / "prompts.txt").write_text(PROMPTS)

    def make(name, *sets, guidance=None):
        family = FAMILIES[name]
        scale = family.guidances[-1] if guidance is None else guidance
        path = tmp_path / "run.toml"
        path.write_text(TOML.format(name=name, folder=folders(name), guidance=scale))
        settings = {**BASE, **family.settings}
        settings["embeddings"] = str(folders(name).parent / "embeddings")  # encode once
        own = [f"backbone.{key}={value!r}" for key, value in settings.items()]
        own = [text.replace("(", "[").replace(")", "]") for text in own]
        return Trainer(open_stage(compose(path, [*own, *sets]), "cpu"))

    return make


def method_of(method):
    if method in ENDPOINT:
        return [f"estimator={ENDPOINT[method]}"]
    algorithm, estimator, dynamics = PER_STEP[method]
    return [
        f"algorithm={{use='{algorithm}'}}",
        f"estimator={{use='{estimator}'}}",
        f"dynamics={{use='{dynamics}'}}",
        "prompts.group=2",
    ]


@pytest.mark.parametrize(("name", "train", "method"), CASES)
def test_two_optimizer_steps(trainer_of, name, train, method):
    trainer = trainer_of(name, f"backbone.train={train}", *method_of(method))
    for index in range(2):
        metrics = trainer.step(index).metrics
        assert torch.tensor(list(metrics.values())).isfinite().all()
        assert metrics["grad_norm"] > 0
    assert trainer.policy_version == 2


def gradient(trainer):
    trainer._gradient(0, measure_memory=False)
    return torch.cat([p.grad.flatten() for p in trainer.parameters.values()])


@pytest.mark.parametrize("name", FAMILIES)
def test_checkpointing_changes_no_gradient(trainer_of, name):
    plain = gradient(trainer_of(name, "backbone.train=full"))
    again = gradient(trainer_of(name, "backbone.train=full", "backbone.checkpointing=true"))
    assert plain.norm() > 0
    assert torch.allclose(plain, again, rtol=1e-5, atol=1e-7 * float(plain.abs().max()))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_conditional_guidance_gradient_differs_and_costs_one_backward(trainer_of, name):
    both = trainer_of(name)
    half = trainer_of(name, "backbone.guidance_gradient=conditional")
    if FAMILIES[name].plugin.guidance_kind == "embedded":
        assert torch.equal(gradient(both), gradient(half))
        return
    assert not torch.allclose(gradient(both), gradient(half), rtol=1e-3)
    backwards = [t.stage.backbone.network_backwards for t in (both, half)]
    assert backwards == [2, 1]


@pytest.mark.parametrize("name", FAMILIES)
def test_bfloat16_is_finite_and_its_first_ratio_is_one(trainer_of, name):
    sets = [*method_of("flow-grpo"), "backbone.dtype=bfloat16"]
    metrics = trainer_of(name, *sets).step(0).metrics
    assert torch.tensor(list(metrics.values())).isfinite().all()
    assert metrics["algorithm/ratio_deviation"] == 0  # the rollout's own micro-batch


def test_a_decoder_that_waits_on_the_cpu_changes_no_gradient(trainer_of):
    plain = gradient(trainer_of("sd3"))
    assert torch.equal(plain, gradient(trainer_of("sd3", "backbone.vae_offload=true")))
