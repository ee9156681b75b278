"""The loop: same seed same result, micro-batches change nothing, guards, and the plan."""

import inspect
import json
import signal

import attrs
import pytest
import torch
from safetensors.torch import load_file

from headwater.composition import compose
from headwater.errors import GuardError, HeadwaterError
from headwater.geometry import draws_of, micro_batches
from headwater.loop import train
from headwater.optimization import Average, learning_rate
from headwater.plan import plan
from headwater.randomness import generator_of
from headwater.stage import open_stage
from headwater.tables import Optimizer
from headwater.trainer import Trainer


def weights(path, out, *overrides):
    summary = train(compose(path, overrides), out)
    (last,) = [p for p in (out / "checkpoints").iterdir() if p.name == f"step-{summary.steps:06d}"]
    return load_file(last / "weights.safetensors")


def test_the_same_seed_gives_the_same_bits(run_file, tmp_path):
    first = weights(run_file(), tmp_path / "a")
    second = weights(run_file(), tmp_path / "b")
    other = weights(run_file(), tmp_path / "c", "seed=4")
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["inner"], other["inner"])


@pytest.mark.parametrize("estimator", ["toy-bptt", "toy-noisy"])
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("draws", [1, 2])
def test_the_micro_batch_changes_nothing(run_file, tmp_path, estimator, size, draws):
    sets = [f"estimator.use={estimator}", f"estimator.draws={draws}", "prompts.group=2"]
    whole = weights(run_file(), tmp_path / "a", *sets, "prompts.micro_batch=8")
    cut = weights(run_file(), tmp_path / "b", *sets, f"prompts.micro_batch={size}")
    for name in whole:
        # float64; sums over samples are taken in another order
        assert torch.allclose(whole[name], cut[name], rtol=1e-12, atol=1e-14)


def test_parts_draw_their_own_indices(run_file):
    run = compose(run_file(), ["estimator.use=toy-noisy", "estimator.draws=4", "steps=1"])
    parts = [batch[0].part for batch in micro_batches(draws_of(run.file, run.prompts, 0), 8)]
    assert parts == [0, 1, 2, 3]


def test_the_loss_is_the_mean_over_all_samples_of_the_step(run_file):
    run = compose(run_file(), ["prompts.micro_batch=3", "rollout.steps=2"])
    stage = open_stage(run, "cpu")
    trainer = Trainer(stage)
    trainer._gradient(0, measure_memory=False)
    network = run.backbone.plugin.network
    got = network.inner.grad.clone()
    draws = draws_of(run.file, run.prompts, 0)
    network.inner.grad = None
    total = torch.zeros((), dtype=torch.float64)
    for draw in draws:  # one sample at a time, plain autograd through the whole rollout
        plugin = run.backbone.plugin
        x = plugin.noise((3, 4, 4), [draw.seed])
        conditioning = plugin.encode([draw.prompt])
        for sigma in (1.0, 0.5):
            x = x - 0.5 * plugin.velocity(x, torch.tensor([sigma]), conditioning)
        total = total - torch.sigmoid(x).mean()
    (total / len(draws)).backward()
    assert torch.allclose(got, network.inner.grad, rtol=1e-12, atol=1e-15)


def test_summary_counts_equal_the_plan(run_file, tmp_path):
    path = run_file()
    for estimator, draws in (("toy-bptt", 1), ("toy-noisy", 2), ("toy-last", 4)):
        sets = [f"estimator.use={estimator}", f"estimator.draws={draws}", "prompts.micro_batch=1"]
        planned = plan(compose(path, sets))
        summary = train(compose(path, sets), tmp_path / f"{estimator}")
        assert (summary.forwards, summary.backwards) == (
            planned["total"]["forwards"],
            planned["total"]["backwards"],
        )
        assert summary.steps == planned["optimizer_steps"] == 4


def test_a_nan_reward_stops_the_run_and_names_the_prompt(run_file, tmp_path):
    path = run_file({"toy-brightness": "toy-nan"})
    (tmp_path / "prompts.txt").write_text("good\nnan here\n")
    with pytest.raises(GuardError, match=r"reward 'brightness' is nan for .* 'nan here'"):
        train(compose(path), tmp_path / "out")


def test_a_nan_reward_can_be_dropped_and_stays_in_n(run_file, tmp_path):
    (tmp_path / "both.txt").write_text("good\nnan here\n")
    gradients = {}
    for name, reward, file in (
        ("nan", "toy-nan", "both.txt"),
        ("clean", "toy-brightness", "both.txt"),
    ):
        sets = [f"prompts.file={file}", "prompts.per_step=2", f"reward.brightness.use={reward}"]
        run = compose(run_file(), [*sets, "guard.nonfinite_reward=drop-group"])
        trainer = Trainer(open_stage(run, "cpu"))
        if name == "clean":  # the same with the bad sample's gradient left out by hand
            draws = [d for d in draws_of(run.file, run.prompts, 0) if "nan" not in d.prompt.text]
            stage = trainer.stage
            stage.backward(stage.sample(draws, 0), generator_of(0), 2)
        else:
            outcomes, _, _ = trainer._gradient(0, measure_memory=False)
            assert sum(outcome.dropped for _, outcome in outcomes) == 1
        gradients[name] = run.backbone.plugin.network.inner.grad
    assert gradients["nan"].isfinite().all()
    assert torch.allclose(gradients["nan"], gradients["clean"], rtol=1e-12, atol=1e-15)


def test_updates_with_a_nan_gradient_are_skipped_then_the_run_stops_with_a_checkpoint(
    run_file, tmp_path
):
    path = run_file({"toy-brightness": "toy-nan"}, extra="[guard]\nmax_skips = 2\n")
    (tmp_path / "prompts.txt").write_text("nan\n")
    out = tmp_path / "out"
    with pytest.raises(GuardError, match="2 updates in a row were skipped") as caught:
        train(compose(path, ["reward.brightness.kind=gradient"]), out)
    assert caught.value.exit_code == 3
    saved = load_file(out / "checkpoints" / "step-000002" / "weights.safetensors")
    assert all(tensor.isfinite().all() for tensor in saved.values())
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["skipped"] for line in lines if "skipped" in line] == [1.0, 1.0]


def test_a_trained_tensor_without_a_gradient_is_named(run_file, tmp_path):
    with pytest.raises(HeadwaterError, match="1 trained tensors received no gradient: unused"):
        train(compose(run_file(), ["backbone.dead=true"]), tmp_path / "out")


def test_an_exception_in_a_plugin_keeps_its_type_and_says_where(run_file, package, tmp_path):
    source = """
        import attrs
        from headwater import hookimpl

        @attrs.frozen(eq=False)
        class Bad:
            differentiable, needs_text, margin = True, False, 1.0
            @hookimpl
            def score(self, images):
                raise ZeroDivisionError("mine")
    """
    package("their-package", {"reward bad": "Bad"}, source)
    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        train(compose(run_file({"toy-brightness": "bad"})), tmp_path / "out")
    notes = "\n".join(caught.value.__notes__)
    assert "hook score of [reward.brightness], their-package 1.0" in notes
    assert "at optimizer step 1 of 4" in notes


def test_a_reward_that_only_claims_a_gradient_is_found_out(run_file, package, tmp_path):
    source = """
        import attrs
        from headwater import hookimpl

        @attrs.frozen(eq=False)
        class Liar:
            differentiable, needs_text, margin = True, False, 1.0
            @hookimpl
            def score(self, images):
                return images.detach().flatten(1).mean(dim=1)
    """
    package("their-package", {"reward liar": "Liar"}, source)
    with pytest.raises(HeadwaterError, match="declares itself differentiable but"):
        train(compose(run_file({"toy-brightness": "liar"})), tmp_path / "out")


def test_sigterm_finishes_the_step_checkpoints_and_says_so(run_file, tmp_path):
    class Interrupt:
        def start(self, run, folder): ...
        def after_evaluation(self, step, metrics): ...
        def finish(self, reason): ...
        def after_step(self, step, metrics, skipped):
            if step == 1:
                signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    summary = train(compose(run_file()), tmp_path / "out", Interrupt())
    assert (summary.steps, summary.stopped) == (1, "SIGTERM")
    assert (tmp_path / "out" / "checkpoints" / "step-000001" / "state.json").exists()
    assert signal.getsignal(signal.SIGTERM) is before


def test_only_the_last_the_best_and_each_kept_checkpoint_remain(run_file, tmp_path):
    sets = ["steps=6", "output.checkpoint_every=1", "output.keep_every=3"]
    train(compose(run_file(), sets), tmp_path / "out")
    folder = tmp_path / "out" / "checkpoints"
    names = {path.name for path in folder.iterdir()}
    best = json.loads((folder / "step-000006" / "state.json").read_text())["best"]
    assert names == {"step-000003", "step-000006", best}


def test_the_average_is_an_exponential_one():
    parameter = torch.nn.Parameter(torch.zeros(2))
    average = Average({"w": parameter}, 0.9)
    expected = torch.zeros(2)
    for value in (1.0, 3.0):
        parameter.data.fill_(value)
        average.update()
        expected = 0.9 * expected + 0.1 * value
    assert torch.allclose(average.weights["w"], expected)
    with average.in_place():
        assert torch.allclose(parameter, expected)
    assert torch.equal(parameter.data, torch.full((2,), 3.0))


def test_the_schedule_warms_up_and_falls_to_zero():
    table = Optimizer(lr=1.0, warmup=4, schedule="cosine")
    rates = [learning_rate(table, step, 14) for step in range(14)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1.0
    assert rates[9] == pytest.approx(0.5)
    assert learning_rate(table, 14, 14) == pytest.approx(0.0)
    assert learning_rate(attrs.evolve(table, schedule="constant"), 13, 14) == 1.0


def test_the_loop_is_one_readable_function():
    from headwater.loop import _Session

    assert len(inspect.getsource(_Session.run).splitlines()) <= 40
