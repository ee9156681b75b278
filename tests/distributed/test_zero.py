"""DeepSpeed's ZeRO-2 in two real processes on a CPU. Skipped where deepspeed is not installed."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from headwater import zero
from headwater.errors import InputError
from support.launching import launch

WORKER = Path(__file__).with_name("worker.py")
FILE = Path(__file__).with_name("run.toml")
MAIN = Path(__file__).with_name("main.py")
CASES = ("direct-single", "jagg-single", "fused-single", "lora-single")
installed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="needs the extra headwater[deepspeed]"
)


def launched(processes, *arguments, **environment):
    done = launch(processes, *arguments, extra=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return done


def flat(folder, case, prefix):
    found = load_file(folder / f"{case}.safetensors")
    names = sorted(n for n in found if n.startswith("grad/") == (prefix == "grad/"))
    assert names
    return torch.cat([found[name].flatten() for name in names]), names


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    made = {name: tmp_path_factory.mktemp(name) for name in ("one", "zero")}
    launched(1, WORKER, made["one"], *CASES)
    launched(2, WORKER, made["zero"], *CASES, ACCELERATE_USE_DEEPSPEED="true")
    return made


@installed
@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_the_first_gradient_is_that_of_one_process(folders, case):
    one, names = flat(folders["one"], case, "grad/")
    two, others = flat(folders["zero"], case, "grad/")
    assert names == others
    # float32 sums in another order; measured 3e-7 to 4e-6.
    assert float((one - two).norm() / one.norm()) < 1e-5


@installed
@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_the_updates_are_those_of_one_process(folders, case):
    one, _ = flat(folders["one"], case, "")
    two, _ = flat(folders["zero"], case, "")
    # Five steps of AdamW at 1e-4: where a gradient is near 0 its sign is rounding.
    assert float((one - two).abs().max()) < 1e-4
    assert float((one - two).abs().mean()) < 1e-7
    metrics = [json.loads((folders[n] / f"{case}.json").read_text())["metrics"] for n in folders]
    for left, right in zip(*metrics, strict=True):
        assert left["grad_norm"] == pytest.approx(right["grad_norm"], rel=1e-3)
        assert left["policy_version"] == right["policy_version"]


@installed
@pytest.mark.long
def test_a_run_goes_on_bit_for_bit_and_in_one_process_too(tmp_path):
    small = ("prompts.per_step=2", "rollout.steps=3", "output.checkpoint_every=2")
    sets = [part for text in (*small, "optimizer.ema=0.5") for part in ("--set", text)]
    use = {"ACCELERATE_USE_DEEPSPEED": "true"}
    arguments = [MAIN, "run", FILE, *sets]
    straight, broken, alone = (tmp_path / name for name in ("straight", "broken", "alone"))
    launched(2, *arguments, "--set", "steps=4", "--out", straight, **use)
    launched(2, *arguments, "--set", "steps=2", "--out", broken, **use)
    launched(1, *arguments, "--set", "steps=2", "--out", alone)
    launched(2, *arguments, "--set", "steps=4", "--out", broken, "--resume", **use)
    launched(2, *arguments, "--set", "steps=4", "--out", alone, "--resume", **use)
    files = {
        folder: {
            stem: load_file(folder / "checkpoints/step-000004" / f"{stem}.safetensors")
            for stem in ("weights", "ema", "optimizer")
        }
        for folder in (straight, broken, alone)
    }
    for stem, tensors in files[straight].items():
        assert tensors.keys() == files[alone][stem].keys()
        for name, tensor in tensors.items():
            assert torch.equal(tensor, files[broken][stem][name])
            worst = float((tensor - files[alone][stem][name]).abs().max())
            assert worst < 1e-4 * max(1.0, float(tensor.abs().max()))


@installed
def test_weights_that_it_would_round_are_refused(tmp_path):
    sets = ["--set", 'backbone.dtype="float64"', "--set", 'reward.preference.dtype="float64"']
    use = {"ACCELERATE_USE_DEEPSPEED": "true"}
    done = launch(2, MAIN, "run", FILE, *sets, "--out", tmp_path / "run", extra=use)
    assert "trained weights are torch.float64" in " ".join(done.stderr.split())
    assert not (tmp_path / "run").exists()


@installed
@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"zero_optimization": {"stage": 3}}, "stage 3"),
        ({"zero_optimization": {"stage": 2}, "gradient_clipping": 2.0}, "gradient_clipping = 2.0"),
        (
            {"zero_optimization": {"stage": 2}, "optimizer": {"type": "Adam", "params": {}}},
            "optimizer =",
        ),
    ],
)
def test_a_configuration_that_differs_from_the_run_file_is_refused(
    tmp_path, monkeypatch, table, said
):
    file = tmp_path / "zero.json"
    file.write_text(json.dumps({"train_micro_batch_size_per_gpu": "auto", **table}))
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(file))
    with pytest.raises(InputError, match=said):
        zero.configuration()


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is not None, reason="it is installed")
def test_where_it_is_not_installed_the_start_says_what_to_install(tmp_path):
    use = {"ACCELERATE_USE_DEEPSPEED": "true"}
    done = launch(2, MAIN, "run", FILE, "--out", tmp_path / "run", extra=use)
    assert 'pip install "headwater[deepspeed]"' in " ".join(done.stderr.split())
    assert "exitcode  : 2" in done.stderr or "exitcode : 2" in done.stderr
    assert not (tmp_path / "run").exists()
