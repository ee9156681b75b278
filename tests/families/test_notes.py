"""A run and its samples say which prompts were encoded, and why."""

import pytest
from click.testing import CliRunner

from families.family_cases import FAMILIES
from families.test_training import PROMPTS, TOML
from headwater.cli import main
from headwater.testing import pipelines as tiny_pipelines


def said(*words):
    """What a command writes about prompt embeddings."""
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    lines = [line for line in result.output.splitlines() if line.startswith("prompt embeddings")]
    assert len(lines) == 1
    return lines[0]


@pytest.fixture
def run(tmp_path):
    """Run a step of sd3 by the command; what it says."""
    (tmp_path / "prompts.txt").write_text(PROMPTS)

    def make(model, out, *sets):
        path = tmp_path / "run.toml"
        path.write_text(TOML.format(name="sd3", folder=model, guidance=3.5))
        own = ["steps=1", "backbone.dtype=float32", "backbone.max_length=24", "backbone.rank=4"]
        words = [word for text in (*own, *sets) for word in ("--set", text)]
        return said("run", path, "--out", tmp_path / out, *words)

    return make


def test_a_second_run_encodes_nothing_and_another_encoder_says_why(folders, run, tmp_path):
    kept = f"backbone.embeddings={tmp_path / 'kept'}"
    model = folders("sd3")
    # Three prompts and the one empty negative prompt.
    assert run(model, "a", kept) == "prompt embeddings: 0 from the cache, 4 encoded"
    assert run(model, "b", kept) == "prompt embeddings: 4 from the cache, 0 encoded"
    other = tiny_pipelines.saved(tiny_pipelines.sd3, tmp_path / "other", encoder_seed=50)
    rebuilt = "0 from the cache, 4 encoded (kept ones were made with other encoder weights)"
    assert run(other, "c", kept) == f"prompt embeddings: {rebuilt}"
    longer = run(model, "d", kept, "backbone.max_length=25", "backbone.dtype=bfloat16")
    assert "other dtype" in longer and "maximum length" in longer
    # A sample's own prompt is new; the run's four are there.
    sampled = said("sample", tmp_path / "b", "--prompt", "a new thing")
    assert sampled == "prompt embeddings: 4 from the cache, 1 encoded"


def test_without_a_folder_nothing_is_kept(folders, run):
    assert run(folders("sd3"), "a") == "prompt embeddings: 4 encoded, kept for this run alone"


def test_a_prompt_counts_once_however_often_it_is_asked_for(folders, tmp_path):
    plugin = FAMILIES["sd3"].load(folders("sd3"), embeddings=str(tmp_path))
    prompts = [*plugin._cache._asked]
    plugin = FAMILIES["sd3"].load(folders("sd3"), embeddings=str(tmp_path))
    for _ in range(3):
        plugin._embeddings(prompts)
    assert plugin.notes() == ["prompt embeddings: 4 from the cache, 0 encoded"]
