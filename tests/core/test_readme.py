"""What the README shows works as it stands."""

import re
from pathlib import Path

from headwater.composition import compose
from headwater.loop import train

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def block(language, word):
    found = [b for b in re.findall(rf"```{language}\n(.*?)```", README, re.S) if word in b]
    assert len(found) == 1
    return found[0]


def test_the_estimator_of_the_readme_trains(run_file, package, tmp_path):
    source = block("python", "class EveryOther")
    entry = re.search(r'^every-other = "(\w+):(\w+)"', block("toml", "entry-points"), re.M)
    package(entry[1], {"estimator every-other": entry[2]}, source)
    path = run_file({'use = "toy-bptt"': 'use = "every-other"\nfirst = 1'})
    summary = train(compose(path), tmp_path / "out")
    assert summary.backwards == 4 * 4 * 2  # steps, samples, active steps 1 and 3 of 1..4


def test_the_run_file_of_the_readme_is_valid(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(block("toml", 'name = "tiny-lagrange"'))
    run = compose(path)
    assert run.estimator.entry.name == "flowbp-lagrange"


def test_the_readme_names_only_existing_folders_and_targets():
    for folder in re.findall(r"`(\w+/)`", README):
        assert (ROOT / folder).is_dir(), folder
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M)
    assert {"demo", "test"} <= set(targets)
