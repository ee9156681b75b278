"""GRPO through the loop on the real tiny model: ratio, updates, KL, geometry, and the plan."""

import json
from pathlib import Path

import attrs
import pytest
import torch

from headwater.composition import compose
from headwater.errors import InputError
from headwater.geometry import rollout_draws, schedule_of, share_of
from headwater.loop import train
from headwater.plan import plan
from headwater.randomness import generator_of
from headwater.stage import open_stage
from headwater.trainer import Trainer

FILE = Path(__file__).parents[2] / "plugins" / "grpo" / "examples" / "flow-grpo.toml"
SMALL = [
    "steps=4",
    "prompts.per_step=2",
    "prompts.group=3",
    "prompts.micro_batch=3",
    "rollout.steps=5",
    "rollout.guidance=1.0",
    "backbone.train=full",
    "evaluation.count=2",
    "output.trackers=[]",
]
DOUBLE = ['backbone.dtype="float64"', 'reward.preference.dtype="float64"']


def trainer_of(*overrides):
    return Trainer(open_stage(compose(FILE, [*SMALL, *overrides]), "cpu"))


def gradient(*overrides, step=0):
    trainer = trainer_of(*overrides)
    trainer._gradient(step, measure_memory=False)
    return torch.cat([p.grad.flatten() for p in trainer.parameters.values()])


@pytest.mark.parametrize("mode", ["stream", "joint", "fused"])
def test_the_first_ratio_is_exactly_one_with_the_rollouts_own_micro_batch(mode):
    metrics = trainer_of(f"engine.mode={mode}").step(0).metrics
    assert metrics["algorithm/ratio_deviation"] == 0


@pytest.mark.parametrize("combine", ["sum", "each"])
def test_a_step_logs_each_rewards_share_of_the_advantage(combine):
    size = "reward.size={use='tiny-jpeg-size', weight=0.1}"
    metrics = trainer_of(size, f"algorithm.combine={combine}").step(0).metrics
    found = [metrics[f"algorithm/share/{key}"] for key in ("preference", "size")]
    assert sum(found) == pytest.approx(1, abs=1e-12)
    assert min(found) > 0


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-6), ("bfloat16", 5e-3)])
def test_the_first_ratio_with_another_micro_batch(dtype, bound):
    """Kernels depend on the batch; the bound in bfloat16 is that of its own rounding."""
    trainer = trainer_of(f"backbone.dtype={dtype}", "backbone.train=lora", "algorithm.clip=0.1")
    trainer._gradient(0, measure_memory=False)
    (whole, *_) = trainer.collected
    rows = [[0], [1, 2]]
    deviation = 0.0
    for part in rows:
        batch = whole.rollout.batch.index(part)
        cut = attrs.evolve(
            whole.rollout,
            batch=batch,
            latents=whole.rollout.latents[:, part],
            velocities=whole.rollout.velocities[:, part],
            log_probs=whole.rollout.log_probs[:, part],
        )
        trainer.stage.run.algorithm.plugin.measured()
        trainer.stage.reinforce(cut, generator_of(0), whole.credit.index(part))
        measured = trainer.stage.run.algorithm.plugin.measured()
        deviation = max(deviation, measured["ratio_deviation"])
    assert deviation <= bound


def test_micro_batches_change_nothing():
    whole = gradient(*DOUBLE, "prompts.micro_batch=6")
    for size in (1, 2, 4):
        cut = gradient(*DOUBLE, f"prompts.micro_batch={size}")
        assert float((cut - whole).norm() / whole.norm()) < 1e-10


def test_a_kl_changes_the_gradient_of_a_trained_model_and_not_of_a_fresh_one():
    found = []
    for sets in ([], ["algorithm.beta=0.04", "algorithm.reference=copy"]):
        trainer = trainer_of("optimizer.lr=1e-3", *sets)
        trainer.step(0)
        trainer.update.begin()
        trainer._gradient(1, measure_memory=False)
        found.append(torch.cat([p.grad.flatten() for p in trainer.parameters.values()]))
    plain, kl = found
    assert float((kl - plain).norm() / plain.norm()) > 1e-3
    fresh = gradient(*DOUBLE), gradient(*DOUBLE, "algorithm.beta=0.5", "algorithm.reference=copy")
    assert torch.equal(*fresh)


def test_the_reference_of_a_lora_is_the_adapter_off():
    trainer = trainer_of("algorithm.beta=0.1", "backbone.train=lora", "optimizer.lr=1e-2")
    first = trainer.step(0).metrics
    later = trainer.step(1).metrics
    assert first["algorithm/kl_x"] == 0
    assert later["algorithm/kl_x"] > 0


def test_updates_and_epochs_use_one_rollout_and_every_share_once():
    sets = ["algorithm.updates=2", "algorithm.epochs=2", "steps=8"]
    trainer = trainer_of(*sets)
    seen = []
    for index in range(8):
        metrics = trainer.step(index).metrics
        groups = {g for c in trainer.collected for g in c.rollout.batch.group_ids}
        assert groups == {0, 1, 2, 3}
        seen.append((trainer.collected_for, metrics["forwards"], metrics))
    assert [rollout for rollout, _, _ in seen] == [0] * 4 + [1] * 4
    drawn = [forwards for _, forwards, _ in seen]
    trained = 2 * 3 * 4  # prompts, samples, trained steps
    assert drawn == [4 * 3 * 5 + trained, trained, trained, trained] * 2
    deviations = [metrics["algorithm/ratio_deviation"] for _, _, metrics in seen]
    assert deviations[0] == deviations[4] == 0
    assert all(d > 0 for d in deviations[1:4])


@pytest.mark.parametrize(
    "sets",
    [
        [],
        ["algorithm.updates=2", "algorithm.epochs=2", "steps=7"],
        ["algorithm={use='dance-grpo'}", "dynamics={use='dance-sde'}"],
        ["algorithm={use='mix-grpo',window=2,updates_each=1}"],
        ["algorithm={use='flow-grpo-fast',window=2}", "dynamics={use='cps'}"],
        ["algorithm.beta=0.1", "algorithm.reference=copy", "algorithm.updates=2"],
        ["estimator.draws=2"],
        ["estimator={use='jagg',window=3}", "algorithm.updates=2"],
        ["estimator={use='jagg',window=3,middle='cached'}", "algorithm.updates=2"],
        ["estimator={use='jagg',window=3,basis='calibrated',calibrate_every=2}"],
        ["estimator={use='jagg',window=4,basis='calibrated',routed=1.0,draws=2}"],
    ],
)
def test_a_run_does_what_the_plan_said(sets, tmp_path):
    run = compose(FILE, [*SMALL, *sets])
    planned = plan(run)
    summary = train(run, tmp_path / "out")
    assert summary.steps == planned["optimizer_steps"]
    assert summary.forwards == planned["total"]["forwards"]
    assert summary.backwards == planned["total"]["backwards"]
    assert planned["samples_per_step"] == 6
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["steps"] == summary.steps


def test_groups_without_spread_are_skipped_and_counted():
    sets = ["reward={count={use='tiny-detector'}}"]
    trainer = trainer_of(*sets, "prompts.group=2", "prompts.per_step=4")
    metrics = trainer.step(0).metrics
    rewards = torch.cat([c.rewards["count"] for c in trainer.collected]).view(4, 2)
    flat = int((rewards[:, 0] == rewards[:, 1]).sum())
    assert metrics["groups_skipped"] == flat > 0


@pytest.mark.parametrize("world", [1, 2, 4])
def test_noise_does_not_depend_on_the_number_of_processes(world):
    run = compose(FILE, [*SMALL, "prompts.per_step=4", "prompts.group=2", "estimator.draws=2"])
    draws = rollout_draws(run, 3)
    shares = [share_of(draws, rank, world) for rank in range(world)]
    dealt = {(d.group, d.seed, d.part) for share in shares for d in share}
    assert dealt == {(d.group, d.seed, d.part) for d in draws}
    assert {len(share) for share in shares} == {len(draws) // world}


def test_an_uneven_deal_is_refused():
    run = compose(FILE, [*SMALL, "prompts.per_step=1"])
    with pytest.raises(ValueError, match=r"3 samples .* cannot be dealt to 2 processes"):
        share_of(rollout_draws(run, 0), 0, 2)


def test_shared_start_noise_is_shared_by_a_group_and_the_steps_noise_is_not():
    trainer = trainer_of("algorithm.shared_noise=true")
    trainer._gradient(0, measure_memory=False)
    latents = trainer.collected[0].rollout.latents  # one micro-batch is one group of three
    assert torch.equal(latents[0, 0], latents[0, 1])
    assert not torch.equal(latents[1, 0], latents[1, 1])


def test_the_last_step_is_an_euler_step_that_is_never_trained():
    for use in ("flow-grpo", "dance-grpo", "mix-grpo", "grpo-guard"):
        run = compose(FILE, [*SMALL, f"algorithm={{use='{use}'}}"])
        found = schedule_of(run, 0)
        assert 4 not in found.stochastic
        assert 4 not in found.trained
    run = compose(FILE, [*SMALL, "algorithm.last_step=stochastic", "algorithm.fraction=1.0"])
    assert schedule_of(run, 0).trained == (0, 1, 2, 3, 4)
    run = compose(FILE, [*SMALL, "algorithm.last_step=stochastic", "dynamics={use='cps'}"])
    assert schedule_of(run, 0).trained == (0, 1, 2, 3)  # without noise, hence without a density


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["prompts.group=1"], "advantages compare samples of a prompt"),
        (["algorithm.beta=0.1"], "no adapter to switch off"),
        (["algorithm.best_of=4"], "best_of = 4 of"),
        (["dynamics={use='ode'}"], "needs stochastic steps"),
        (["estimator={use='bptt'}"], "works with flow-grpo: exact"),
        (["algorithm={use='mix-grpo',window=5}"], "does not fit into 4"),
        (["rollout.steps=1"], "no step of a rollout of 1 is stochastic and trained"),
    ],
)
def test_what_cannot_work_is_said_at_composition(sets, said):
    with pytest.raises(InputError, match=said):
        compose(FILE, [*SMALL, *sets])
