"""Twelve steps in one go equal five and then seven, bit for bit."""

from pathlib import Path

import pytest
from resume_runs import assert_same_end, interrupted, last, lines, straight

import headwater
from headwater.sampling import sample

PLUGINS = Path(__file__).parents[2] / "plugins"
DIRECT = PLUGINS / "flowbp" / "examples" / "flowbp-bridge.toml"
GRPO = PLUGINS / "grpo" / "examples" / "flow-grpo.toml"
SMALL = [
    "steps=12",
    "prompts.micro_batch=2",
    "rollout.guidance=1.0",
    "rollout.steps=4",
    "evaluation.steps=4",
    "optimizer.lr=1e-3",
    "optimizer.ema=0.9",
    "evaluation.every=4",
    "evaluation.count=2",
    "output.checkpoint_every=6",
    "output.trackers=['jsonl']",
]
BRIDGE = [
    *SMALL,
    "prompts.per_step=2",
    "estimator.k=3",
    "optimizer.schedule=cosine",
    "optimizer.warmup=2",
]
GROUPS = [*SMALL, "prompts.per_step=1", "prompts.group=2"]
JAGG = [
    *GROUPS,
    "algorithm.updates=2",
    "algorithm.epochs=2",
    "estimator={use='jagg',window=3,middle='cached',routed='auto',basis='calibrated',calibrate_every=3,threshold=0.5}",
]
KL = ["algorithm.beta=0.1", "algorithm.reference=copy"]
MIX = ["algorithm={use='mix-grpo',window=2,updates_each=3,updates=3}", "estimator={use='exact'}"]
CASES = {
    "jagg-full": (GRPO, [*JAGG, *KL, "backbone.train=full"]),
    "mix-lora": (GRPO, [*GROUPS, *MIX, "backbone.train=lora", "rollout.store=bfloat16"]),
}
MORE = {
    "bridge-lora": (DIRECT, [*BRIDGE, "backbone.train=lora"]),
    "bridge-full": (DIRECT, [*BRIDGE, "backbone.train=full", "estimator.draws=2"]),
    "jagg-lora": (GRPO, [*JAGG, "backbone.train=lora", "dynamics={use='cps'}"]),
    "jagg-one-update": (GRPO, [*GROUPS, "estimator={use='jagg',window=3}", "backbone.train=lora"]),
    "mix-full": (GRPO, [*GROUPS, *MIX, "backbone.train=full", "estimator={use='jagg',window=2}"]),
    "dance": (
        GRPO,
        [*GROUPS, "algorithm={use='dance-grpo',updates=2}", "dynamics={use='dance-sde'}"],
    ),
    "bfloat16": (DIRECT, [*BRIDGE, "backbone.train=full", "backbone.dtype=bfloat16"]),
}


@pytest.mark.filterwarnings("ignore:jagg")
@pytest.mark.parametrize(
    "case", [*CASES, *(pytest.param(name, marks=pytest.mark.long) for name in MORE)]
)
def test_five_steps_and_seven_are_twelve(case, tmp_path):
    path, sets = {**CASES, **MORE}[case]
    whole = straight(path, sets, tmp_path / "whole")
    parts = interrupted(path, sets, tmp_path / "parts")
    assert whole.steps == parts.steps == 12
    assert_same_end(tmp_path / "whole", tmp_path / "parts")
    if case == "mix-lora":  # the samples of the trained model, drawn anew
        drawn = [
            sample(tmp_path / name, ["a large circle"], 1, 5, "last", tmp_path / f"{name}.png")
            for name in ("whole", "parts")
        ]
        assert drawn[0].read_bytes() == drawn[1].read_bytes()


@pytest.mark.parametrize("after", [1, 2, 3, 6, 11])
def test_memory_and_global_generators_go_on(toy_file, whole, tmp_path, after):
    interrupted(toy_file, [], tmp_path / "parts", after)
    assert_same_end(whole(), tmp_path / "parts")
    traces = {row["estimator/trace_0"] for row in lines(whole()) if "loss" in row}
    assert len(traces) == 12


def test_a_rollout_that_is_half_used_is_kept_and_a_used_one_is_not(tmp_path):
    path, sets = CASES["mix-lora"]
    for after, kept in ((4, True), (6, False)):
        out = tmp_path / str(after)
        with pytest.raises(RuntimeError, match="enough"):
            straight_until(path, sets, out, after)
        assert (last(out) / "rollout.safetensors").exists() == kept


def straight_until(path, sets, out, after):
    from resume_runs import Told

    from headwater.composition import compose
    from headwater.loop import train

    class Enough(Told):
        def after_step(self, step, metrics, skipped):
            if step == after:
                raise RuntimeError("enough")

    train(compose(path, [*sets, "evaluation.prompts=''"]), out, Enough())


def test_more_steps_may_be_asked_for_from_python(toy_file, tmp_path):
    sets = ["evaluation.every=100"]
    straight(toy_file, sets, tmp_path / "whole")
    straight(toy_file, [*sets, "steps=5"], tmp_path / "parts")
    with pytest.warns(UserWarning, match="changed: steps: 5 in the checkpoint, 12 now"):
        found = headwater.run(toy_file, sets, tmp_path / "parts", resume=True)
    assert found.steps == 12
    rows = [row for row in lines(tmp_path / "parts") if row["step"] != 5 or "loss" in row]
    assert rows == lines(tmp_path / "whole")  # but for the evaluation that ended the short run


def test_a_run_that_is_done_stays_as_it_is(toy_file, tmp_path):
    out = tmp_path / "out"
    straight(toy_file, [], out)
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file() and p.name != "summary.json"}
    with pytest.warns(UserWarning, match="resumed from"):
        again = headwater.run(toy_file, [], out, resume=True)
    assert (again.steps, again.stopped) == (12, "")
    assert {p: p.read_bytes() for p in before} == before


def test_a_lost_summary_is_written_again(toy_file, tmp_path):
    straight(toy_file, [], tmp_path / "whole")
    straight(toy_file, [], tmp_path / "parts")
    (tmp_path / "parts" / "summary.json").unlink()
    (tmp_path / "parts" / "samples" / "before_after.png").unlink()
    with pytest.warns(UserWarning, match="resumed from"):
        headwater.run(toy_file, [], tmp_path / "parts", resume=True)
    assert_same_end(tmp_path / "whole", tmp_path / "parts")


def test_a_resumed_gradient_is_added_to_zeros_as_it_would_have_been(toy_file):
    """Without them the first gradient would be taken as it is, and -0.0 is not 0.0 + -0.0."""
    from headwater import state
    from headwater.composition import compose
    from headwater.stage import open_stage
    from headwater.trainer import Trainer

    def trainer():
        return Trainer(open_stage(compose(toy_file), "cpu"))

    one, other = trainer(), trainer()
    one.step(0)
    record, files = state.capture(one, 1)
    weights = {name: p.detach().clone() for name, p in one.parameters.items()}
    state.restore(other, 1, record, weights, one.average.weights, {"rollout": {}, **files})
    for name, parameter in other.parameters.items():
        assert one.parameters[name].grad is not None
        assert parameter.grad is not None
        assert not parameter.grad.any()
