"""`headwater eval` against numbers formed by hand from the pictures and seeds it leaves."""

import base64
import io
import itertools
import json
import math
import shutil
import statistics

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from support.scripted_server import Answer, serving

SIDES = ("base", "aligned")


def evaluated(headwater, run, out, *arguments):
    result = headwater("eval", run, "--out", out, *arguments)
    assert result.exit_code == 0, result.output
    return json.loads((out / "eval.json").read_text())


def records(out):
    return [json.loads(line) for line in (out / "scores.jsonl").read_text().splitlines()]


def pixels(out, side):
    """(samples, H, W, 3) in [0, 1], float64, in the order of the records."""
    files = [out / "images" / side / row["image"] for row in records(out)]
    return np.stack([np.array(Image.open(file)) for file in files]) / 255.0


@pytest.fixture(scope="module")
def toy_eval(toy_run, headwater, disk):
    """Five prompts, three samples each; the report and its folder."""
    out = disk / "toy-eval"
    return evaluated(headwater, toy_run, out, "--seeds", 3, "--reward", "brightness", "--reward",
                     "count", "--reward", "colour=mean-colour"), out  # fmt: skip


def test_the_base_against_itself_differs_by_exactly_nothing(toy_run, hacked, headwater, tmp_path):
    for name, run in (("toy", toy_run), ("tiny", hacked[1])):
        report = evaluated(
            headwater, run, tmp_path / name, "--checkpoint", "base", "--count", 3, "--seeds", 2
        )
        assert report["weights"] == "base"
        for row in [*report["rewards"].values(), *report["diversity"].values()]:
            assert (row["difference"]["mean"], row["difference"]["se"]) == (0, 0)
            assert (row["win_rate"]["mean"], row["win_rate"]["se"]) == (0.5, 0)
            assert row["base"] == row["aligned"]


def test_scores_are_those_of_the_saved_pictures(toy_eval):
    _, out = toy_eval
    for side in SIDES:
        images = pixels(out, side)
        by_hand = {
            "brightness": images.mean(axis=(1, 2, 3)),
            "count": (images > 0.5).mean(axis=(1, 2, 3)),
            "colour": images[..., 0].mean(axis=(1, 2)),
        }
        for key, values in by_hand.items():
            assert [row[side][key] for row in records(out)] == pytest.approx(values, abs=1e-12)


def test_means_errors_differences_and_win_rates_are_those_of_the_prompts(toy_eval):
    report, out = toy_eval
    rows = records(out)
    for key in ("brightness", "count", "colour"):
        prompts = [[r for r in rows if r["number"] == n] for n in range(5)]
        assert [len(p) for p in prompts] == [3] * 5
        parts = {
            "base": [[r["base"][key] for r in p] for p in prompts],
            "aligned": [[r["aligned"][key] for r in p] for p in prompts],
            "difference": [[r["aligned"][key] - r["base"][key] for r in p] for p in prompts],
            "win_rate": [
                [(np.sign(r["aligned"][key] - r["base"][key]) + 1) / 2 for r in p] for p in prompts
            ],
        }
        for part, values in parts.items():
            means = [statistics.mean(row) for row in values]
            found = report["rewards"][key][part]
            assert found["n"] == 5
            assert found["mean"] == pytest.approx(statistics.mean(means), abs=1e-12)
            assert found["se"] == pytest.approx(statistics.stdev(means) / math.sqrt(5), abs=1e-12)
    assert report["rewards"]["brightness"]["difference"]["mean"] > 0
    assert report["rewards"]["brightness"]["trained"]
    assert not report["rewards"]["count"]["trained"]


def test_diversity_is_that_of_the_saved_pictures(toy_eval):
    report, out = toy_eval
    pairs = list(itertools.combinations(range(3), 2))
    for side in SIDES:
        images = pixels(out, side).reshape(5, 3, -1, 3)  # prompt, sample, pixel, channel
        spread = images.std(axis=1, ddof=1).mean(axis=(1, 2))
        distance, angle = [], []
        for prompt in images:
            apart = [np.sqrt(((prompt[a] - prompt[b]) ** 2).mean()) for a, b in pairs]
            distance.append(np.mean(apart))
            colours = prompt.mean(axis=1)
            unit = colours / np.linalg.norm(colours, axis=1, keepdims=True)
            angle.append(np.mean([1 - unit[a] @ unit[b] for a, b in pairs]))
        for name, values, tolerance in (
            ("pixel_spread", spread, 1e-12),
            ("pixels", distance, 1e-12),
            ("embedding/colour", angle, 1e-6),  # features are kept in float32
        ):
            found = report["diversity"][name][side]
            assert found["mean"] == pytest.approx(np.mean(values), abs=tolerance)
            assert found["se"] == pytest.approx(np.std(values, ddof=1) / 5**0.5, abs=tolerance)


def test_pictures_are_those_of_the_seeds_and_the_weights(toy_run, toy_eval):
    """Sampled again without the package: noise from the seed, four Euler steps."""
    _, out = toy_eval
    # the toy network as it is made: seed 3, no averages yet
    generator = torch.Generator().manual_seed(3)
    base = {
        "inner": torch.randn(48, 48, generator=generator, dtype=torch.float64) / 7,
        "text": torch.randn(48, generator=generator, dtype=torch.float64),
    }
    weights = dict(zip(SIDES, (base, load_file(toy_run / "checkpoints/step-000003/ema.safetensors")),
                       strict=True))  # fmt: skip
    for side in SIDES:
        images = pixels(out, side)
        for i, row in enumerate(records(out)):
            noise = torch.Generator().manual_seed(row["seed"])
            x = torch.randn(3, 4, 4, generator=noise).double()
            for sigma in (1.0, 0.75, 0.5, 0.25):
                text = len(row["prompt"]) / 10 * weights[side]["text"]
                hidden = torch.tanh(x.flatten() @ weights[side]["inner"] + text)
                x = x - 0.25 * (hidden * (1 + sigma)).view(3, 4, 4)
            levels = (torch.sigmoid(x) * 255).round().permute(1, 2, 0).numpy()
            assert (levels == np.round(images[i] * 255)).all()


def test_weights_checkpoints_and_steps_are_the_ones_asked_for(toy_run, headwater, tmp_path):
    first = ("--count", 2, "--seeds", 1)
    asked = {
        "live": ("--weights", "live"),
        "early": ("--checkpoint", 1),
        "short": ("--steps", 2),
        "other": ("--seed", 5),
        "usual": (),
    }
    found = {
        name: evaluated(headwater, toy_run, tmp_path / name, *first, *more)
        for name, more in asked.items()
    }
    assert found["live"]["weights"] == "live"
    assert found["usual"]["weights"] == "ema"
    assert found["early"]["checkpoint"] == "step-000001"
    assert (found["short"]["steps"], found["usual"]["steps"]) == (2, 4)
    after = {n: [r["aligned"]["brightness"] for r in records(tmp_path / n)] for n in asked}
    assert len({tuple(values) for values in after.values()}) == len(asked)
    before = {n: [r["base"]["brightness"] for r in records(tmp_path / n)] for n in asked}
    assert before["live"] == before["early"] == before["usual"]
    assert found["usual"]["diversity"] == {}


def test_the_batch_changes_nothing_when_it_cuts_a_prompt(toy_run, headwater, tmp_path):
    found = [
        evaluated(headwater, toy_run, tmp_path / str(size), "--set", f"evaluation.batch={size}")
        for size in (1, 3, 64)
    ]
    for report in found[1:]:
        assert report["rewards"] == found[0]["rewards"]
        assert report["diversity"] == found[0]["diversity"]


def test_one_prompt_has_the_error_of_its_samples(toy_run, headwater, tmp_path):
    report = evaluated(headwater, toy_run, tmp_path / "one", "--count", 1, "--seeds", 3)
    values = [row["aligned"]["brightness"] for row in records(tmp_path / "one")]
    found = report["rewards"]["brightness"]["aligned"]
    assert found["n"] == 3
    assert found["se"] == pytest.approx(statistics.stdev(values) / math.sqrt(3), abs=1e-12)
    assert report["diversity"]["pixels"]["base"]["se"] is None  # one prompt, one value


GENEVAL = [
    {"tag": "counting", "include": [{"class": "bench", "count": 2}], "prompt": "two benches"},
    {"tag": "counting", "include": [{"class": "dog", "count": 3}], "prompt": "three dogs now"},
    {"tag": "colors", "include": [{"class": "dog", "count": 1, "color": "red"}], "prompt": "red"},
]


@pytest.mark.parametrize("form", ["GenEval's own", "ours"])
def test_prompts_of_geneval_are_broken_down_by_their_tag(toy_run, headwater, tmp_path, form):
    rows = GENEVAL
    if form == "ours":
        rows = [{"prompt": r["prompt"], "metadata": {**r, "prompt": ""}} for r in rows]
    (tmp_path / "list.jsonl").write_text("\n".join(map(json.dumps, rows)))
    out = tmp_path / "out"
    report = evaluated(
        headwater, toy_run, out, "--prompts", tmp_path / "list.jsonl", "--reward", "count"
    )
    lines, found = records(out), report["rewards"]["count"]
    assert set(found["tags"]) == {"counting", "colors"}
    means = {
        tag: statistics.mean(r["aligned"]["count"] for r in lines if r["tag"] == tag)
        for tag in found["tags"]
    }
    for tag, mean in means.items():
        assert found["tags"][tag]["aligned"]["mean"] == pytest.approx(mean, abs=1e-12)
    assert found["tags"]["counting"]["aligned"]["n"] == 2  # prompts
    assert found["tags"]["colors"]["aligned"]["n"] == 4  # the samples of its one prompt
    whole = found["mean_over_tags"]["aligned"]
    assert whole["mean"] == pytest.approx(statistics.mean(means.values()), abs=1e-12)


def test_geneval_judges_both_models_over_http(toy_run, headwater, tmp_path):
    """Its rules here: more than half of the picture is bright."""

    def respond(_, asked):
        picture = Image.open(io.BytesIO(base64.b64decode(asked["image"]["base64"])))
        assert asked["metadata"]["include"]
        return Answer({"correct": bool((np.array(picture) > 127.5).mean() > 0.5), "score": 0.0})

    (tmp_path / "list.jsonl").write_text("\n".join(map(json.dumps, GENEVAL)))
    out = tmp_path / "out"
    with serving(respond) as server:
        judge = ("--reward", "geneval", "--set", f"reward.geneval.server={server.url}")
        report = evaluated(headwater, toy_run, out, "--prompts", tmp_path / "list.jsonl", *judge)
    for side in SIDES:
        correct = ((pixels(out, side) > 0.5).mean(axis=(1, 2, 3)) > 0.5).astype(float)
        assert [row[side]["geneval"] for row in records(out)] == list(correct)
        tags = [correct[:8].mean(), correct[8:].mean()]
        found = report["rewards"]["geneval"]["mean_over_tags"][side]["mean"]
        assert found == pytest.approx(np.mean(tags), abs=1e-12)


def test_a_hacked_run_is_called_so(hacked, headwater, tmp_path):
    out = tmp_path / "out"
    arguments = ("--count", 12, "--seeds", 1, "--grid", 5, "--checkpoint", "last")
    result = headwater("eval", hacked[1], "--out", out, *arguments)
    assert result.exit_code == 0, result.output
    report = json.loads((out / "eval.json").read_text())
    saturation, preference = report["rewards"]["saturation"], report["rewards"]["preference"]
    assert saturation["difference"]["mean"] > 3 * saturation["difference"]["se"]
    assert saturation["win_rate"]["mean"] > 0.9
    assert preference["difference"]["mean"] < -preference["difference"]["se"]
    (warning,) = report["warnings"]
    assert warning.startswith("reward hacking: saturation +")
    assert "WARNING: reward hacking" in result.output
    assert [p.name for p in (out / "grids").iterdir()] == ["grid-01.png"]


def test_a_reward_is_given_as_plugin_with_settings_or_in_a_file(hacked, headwater, tmp_path):
    few = ("--count", 2, "--seeds", 1, "--json")
    named = headwater(
        "eval", hacked[1], *few, "--out", tmp_path / "named", "--reward", "size=tiny-jpeg-size",
        "--set", "reward.size.quality=30", "--reward", "tiny-detector"
    )  # fmt: skip
    report = json.loads(named.stdout)
    assert set(report["rewards"]) == {"size", "tiny-detector"}
    assert report["rewards"]["size"]["settings"]["quality"] == 30
    (tmp_path / "judges.toml").write_text('[reward.size]\nuse = "tiny-jpeg-size"\nquality = 30\n')
    filed = headwater(
        "eval", hacked[1], *few, "--out", tmp_path / "filed", "--config", tmp_path / "judges.toml"
    )
    assert json.loads(filed.stdout)["rewards"]["size"] == report["rewards"]["size"]


def test_a_run_is_evaluated_where_its_trained_reward_is_not(toy_run, headwater, tmp_path, disk):
    """The plugin of a trained reward may be gone, and so may the prompts it was trained on."""
    moved = tmp_path / "moved"
    shutil.copytree(toy_run, moved)
    text = (moved / "run.toml").read_text().replace("toy-brightness", "no-longer-installed")
    (moved / "run.toml").write_text(text.replace("prompts.txt", "gone.txt"))
    report = evaluated(headwater, moved, tmp_path / "out", "--reward", "count", "--count", 2)
    assert set(report["rewards"]) == {"count"}
    result = headwater("eval", moved)
    assert result.exit_code == 2
    assert "no reward named 'no-longer-installed'" in result.output


def test_a_score_that_is_not_finite_stops_it_or_drops_the_prompt(toy_run, headwater, tmp_path):
    (tmp_path / "list.txt").write_text("fine\nnan\nalso fine\n")
    asked = ("--prompts", tmp_path / "list.txt", "--reward", "odd=toy-nan", "--seeds", 2)
    result = headwater("eval", toy_run, *asked, "--out", tmp_path / "stopped")
    assert result.exit_code == 3
    assert "reward 'odd' is nan" in result.output
    drop = ("--set", "guard.nonfinite_reward=drop-group")
    found = evaluated(headwater, toy_run, tmp_path / "dropped", *asked, *drop)["rewards"]["odd"]
    assert (found["dropped"], found["base"]["n"]) == (1, 2)
