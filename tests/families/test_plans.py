"""Plans of the families, and the published recipes, from configurations alone."""

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from families.family_cases import FAMILIES
from families.test_training import method_of, trainer_of  # noqa: F401 - a fixture
from headwater.cli import main
from headwater.composition import compose
from headwater.families import folder
from headwater.memory import peak_memory
from headwater.plan import plan

PLUGINS = Path(__file__).parents[2] / "plugins"
FOLDERS = ("sd3", "flux", "flux2", "qwen-image", "z-image")
RECIPES = {
    path.stem: path for name in FOLDERS for path in (PLUGINS / name / "examples").glob("*.toml")
}
DIRECT = (
    "flowbp-sparse",
    "flowbp-bridge",
    "flowbp-lagrange",
    "refl",
    "draft-lv",
    "drtune",
    "leapalign",
)
PUBLISHED = {
    *(f"{method}-{model}" for method in DIRECT for model in ("sd35m", "flux1dev", "flux2klein9b")),
    *("dance-grpo-jagg-flux1dev", "dance-grpo-jagg-qwen-image"),
    *("flow-grpo-fast-jagg-sd35m", "flow-grpo-fast-jagg-flux1dev"),
    "flowbp-lagrange-z-image",
}
LORA = {"flow-grpo-fast-jagg-sd35m", "flowbp-lagrange-z-image"}
SIZES = {
    # Parameters of the transformers as their authors give them, in billions.
    "flowbp-sparse-sd35m": (2.2, 2.5),
    "flowbp-sparse-flux1dev": (11.8, 12.0),
    "flowbp-sparse-flux2klein9b": (8.9, 9.2),
    "dance-grpo-jagg-qwen-image": (20.2, 20.6),
    "flowbp-lagrange-z-image": (6.1, 6.2),
}


def test_every_published_recipe_is_there():
    assert set(RECIPES) == PUBLISHED


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_recipe_composes_and_its_work_is_planned_offline(name):
    run = compose(RECIPES[name])
    found = plan(run)
    table = run.file
    assert found["optimizer_steps"] == table.steps
    samples = table.prompts.per_step * table.prompts.group
    assert found["samples_per_step"] == samples
    assert found["per_step"]["backwards"]["min"] > 0
    if "jagg" in name:
        trained = len(found["trained_steps"])
        assert trained >= 4
        # Backwards: two a group of W = 4 that is routed; fewer than one a step.
        each = found["per_step"]["backwards"]["mean"] / samples
        assert each < trained * run.backbone.plugin.network_evaluations(table.rollout.guidance)[1]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if "-image" in name else ())
        for name in sorted(SIZES)
    ],
)
def test_released_configurations_have_the_published_sizes(name):
    low, high = SIZES[name]
    full = ["backbone.train=full", "backbone.dtype=float32", "engine.precision=bfloat16"]
    memory = plan(compose(RECIPES[name], ["steps=1", *full]), ("stream",))["memory"]
    counts = memory["parameters"]
    count = counts["trainable"] + counts["frozen"]
    assert low * 1e9 < count < high * 1e9
    assert memory["weights"]["network"] >= 4 * count
    assert memory["optimizer"] == 8 * counts["trainable"]


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_headwater_plan_prints_the_memory_of_a_recipe(name):
    result = CliRunner().invoke(main, ["plan", str(RECIPES[name]), "--memory", "24"])
    assert result.exit_code == 0, result.output
    assert "peak, " in result.output
    too_much = "will not fit a device of 24.0 GB" in result.output
    assert too_much == (name not in LORA)


@pytest.mark.long
def test_a_lora_recipe_fits_where_full_training_does_not():
    recipe = RECIPES["flow-grpo-fast-jagg-sd35m"]
    lora, full = (
        plan(compose(recipe, ["steps=1", *sets]), ("fused",))["memory"]["peak"]["fused"]
        for sets in ([], ["backbone.train=full", "backbone.dtype=float32"])
    )
    assert lora < 24e9 < full


@pytest.mark.parametrize("name", FAMILIES)
def test_shipped_configurations_make_shapes_and_sigmas(name):
    package = FAMILIES[name].plugin.package
    for model in folder.released(package):
        plugin = FAMILIES[name].plugin(model)
        shape = plugin.shape(type("Request", (), {"height": 512, "width": 768})())
        assert shape[-1] * 2 == shape[-2] * 3
        sigmas = plugin.sigmas(25, shape)
        assert float(sigmas[0]) == pytest.approx(1.0, abs=1e-6)
        assert float(sigmas[-1]) == 0.0


@pytest.mark.parametrize("checkpointing", ["false", "true"])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_plan_gives_the_peak_of_a_family(trainer_of, name, checkpointing):  # noqa: F811
    sets = ["backbone.train=full", f"backbone.checkpointing={checkpointing}"]
    sets += [*method_of("leapalign"), "prompts.per_step=4"]
    # Families that pad nothing: an empty negative prompt takes less than a plan counts.
    unpadded = name in ("qwen-image", "z-image")
    trainer = trainer_of(name, *sets, guidance=1.0 if unpadded else None)
    memory = plan(trainer.stage.run, ("stream",))["memory"]
    backbone = trainer.stage.backbone
    for parameter in trainer.parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    rollout = trainer.stage.sample(draws(trainer), 0)
    x = rollout.state(0)
    sigma = torch.full((len(x),), 0.5)

    def work():
        v = backbone.velocity(x, sigma, rollout.batch.conditioning)
        v.backward(torch.ones_like(v))

    work()
    measured = peak_memory(work)[1]
    # Networks of a few thousand parameters; CPU kernels copy less than the meta device counts.
    assert memory["engine"]["stream"] == pytest.approx(measured, rel=0.12)


def draws(trainer):
    from headwater.geometry import rollout_draws

    return rollout_draws(trainer.stage.run, 0)
