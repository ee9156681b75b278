"""What observers are told, in which order, and that none of it reaches the run."""

import json
import warnings

import pytest
import torch
from safetensors.torch import load_file

from headwater.composition import compose
from headwater.loop import train

TOLD = '''
    import json, random
    from pathlib import Path
    import attrs, numpy, torch
    from headwater import hookimpl

    @attrs.define(eq=False)
    class Meddler:
        """Writes each call down, and touches all that a process shares."""

        folder: object = attrs.field(init=False, default=None)

        def tell(self, *call):
            with (self.folder / "calls.jsonl").open("a") as file:
                file.write(json.dumps(call) + "\\n")
            torch.rand(3), numpy.random.rand(3), random.random()
            torch.manual_seed(0), numpy.random.seed(0), random.seed(0)
            torch.set_default_dtype(torch.float64)
            torch.set_grad_enabled(False)

        @hookimpl
        def start(self, folder):
            self.folder = folder
            self.tell("start")

        @hookimpl
        def before_step(self, step):
            self.tell("before_step", step)

        @hookimpl
        def after_step(self, step, metrics):
            try:
                metrics["grad_norm"] = 0.0
            except TypeError:
                self.tell("after_step", step)

        @hookimpl
        def after_evaluation(self, step):
            self.tell("after_evaluation", step)

        @hookimpl
        def on_error(self, step, error):
            self.tell("on_error", step, str(error))

        @hookimpl
        def finish(self, step, reason):
            self.tell("finish", step, reason)
'''
PLAIN = '\ntrackers = ["jsonl"]\n'


@pytest.fixture
def meddler(package):
    package("their-meddler", {"observer meddler": "Meddler"}, TOLD)


def calls(out):
    return [json.loads(line) for line in (out / "calls.jsonl").read_text().splitlines()]


def ran(path, out, *sets):
    torch.manual_seed(5)
    return train(compose(path, sets), out)


def test_every_call_comes_once_and_in_order(run_file, meddler, tmp_path):
    ran(run_file(extra='\ntrackers = ["meddler"]\n'), tmp_path / "out")
    steps = [[["before_step", i], ["after_step", i]] for i in (1, 2, 3, 4)]
    assert calls(tmp_path / "out") == [
        ["start"],
        ["after_evaluation", 0],
        *steps[0],
        *steps[1],
        ["after_evaluation", 2],
        *steps[2],
        *steps[3],
        ["after_evaluation", 4],
        ["finish", 4, "done"],
    ]


def test_one_that_touches_all_that_is_shared_changes_no_bit(run_file, meddler, tmp_path):
    alone, beside = tmp_path / "alone", tmp_path / "beside"
    ran(run_file(extra=PLAIN), alone)
    ran(run_file(extra=PLAIN), beside, 'output.trackers=["meddler", "jsonl"]')
    assert len(calls(beside)) == 13
    for name in ("weights", "optimizer", "ema"):
        file = f"checkpoints/step-000004/{name}.safetensors"
        one, two = load_file(alone / file), load_file(beside / file)
        assert one.keys() == two.keys()
        assert all(torch.equal(one[key], two[key]) for key in one)
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()


def test_a_run_that_fails_is_told_before_it_ends(run_file, meddler, package, tmp_path):
    package(
        "their-failing",
        {"reward failing": "Failing"},
        """
        import attrs
        from headwater import hookimpl

        @attrs.define(eq=False)
        class Failing:
            differentiable, needs_text, margin = True, False, 1.0
            calls = 0

            @hookimpl
            def score(self, images):
                Failing.calls += 1
                if Failing.calls > 4:
                    raise RuntimeError("no more")
                return images.flatten(1).mean(dim=1)
        """,
    )
    path = run_file({'use = "toy-brightness"': 'use = "failing"'}, '\ntrackers = ["meddler"]\n')
    with warnings.catch_warnings(), pytest.raises(RuntimeError, match="no more"):
        warnings.simplefilter("ignore")
        ran(path, tmp_path / "out")
    told = calls(tmp_path / "out")
    assert [call[0] for call in told[-2:]] == ["on_error", "finish"]
    assert told[-2][2] == "no more"
    assert told[-1][2] == "failed"
    assert [call[0] for call in told].count("on_error") == 1
