"""`headwater cite`: BibTeX for exactly what a run uses."""

import re
from pathlib import Path

from click.testing import CliRunner

from headwater.cli import main

PLUGINS = Path(__file__).parents[2] / "plugins"


def test_each_paper_of_a_run_is_cited_once_with_what_uses_it():
    result = CliRunner().invoke(main, ["cite", str(PLUGINS / "jagg" / "examples" / "jagg.toml")])
    assert result.exit_code == 0, result.output
    keys = re.findall(r"@misc\{(.+),", result.output)
    assert len(keys) == len(set(keys))
    assert {"arxiv:2607.17572", "arxiv:2505.05470"} <= set(keys)
    assert "arxiv:2606.11075" not in keys  # FlowBP is installed and not used
    assert "year = {2026}" in result.output
    assert "estimator jagg" in result.output
    assert result.output.count("{") == result.output.count("}")


def test_what_states_no_paper_is_said():
    file = PLUGINS / "tiny" / "examples" / "tiny-leapalign.toml"
    result = CliRunner().invoke(main, ["cite", str(file)])
    assert "% no paper is stated by: backbone tiny" in result.output
    assert "2604.15311" in result.output
