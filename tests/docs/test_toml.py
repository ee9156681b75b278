"""Every TOML in the repository and on a page is what it looks like."""

from pathlib import Path

import pytest
import tomli
from docs.site_words import HAND_WRITTEN, ROOT, blocks
from sitegen import recipes, settings_tables, shipped

from headwater.composition import compose
from headwater.runfile import read_rewards
from headwater.settings import checked_values

SKIPPED = {".venv", "site", "runs", "dist", "build", ".git"}
FILES = sorted(p for p in ROOT.rglob("*.toml") if not SKIPPED & set(p.relative_to(ROOT).parts[:-1]))
EXAMPLES = set(ROOT.glob("*/*/examples/*.toml"))  # each is checked by tests/core/test_run_files.py
OTHERS = [p for p in FILES if p not in EXAMPLES and p.name != "pyproject.toml"]
BLOCKS = [
    (page, body)
    for page in HAND_WRITTEN
    for body in blocks(page.read_text(encoding="utf-8"), "toml")
]
PLUGIN_TABLES = {"backbone", "dynamics", "algorithm", "estimator"}


def is_whole(table):
    return {"steps", "backbone", "prompts", "reward", "algorithm", "estimator"} <= set(table)


@pytest.mark.parametrize("path", OTHERS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_every_toml_that_is_no_example_is_checked(path):
    table = tomli.loads(path.read_text(encoding="utf-8"))
    if path.is_relative_to(ROOT / "tests"):
        assert table  # a test's own file, for plugins of the test
    elif is_whole(table):
        compose(path)
    elif set(table) == {"estimator"}:
        for settings in table["estimator"].values():
            faults_of_plugin("estimator", settings)
    else:
        assert read_rewards(path)


def test_there_is_something_to_check():
    assert len(EXAMPLES) > 40
    assert any(p.parent.name == "bench" for p in OTHERS)
    assert len(recipes.run_files()) > 40


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_every_toml_block_of_a_page_is_valid(number, tmp_path):
    page, body = BLOCKS[number]
    table = tomli.loads(body)
    if is_whole(table):
        path = tmp_path / "run.toml"
        path.write_text(body, encoding="utf-8")
        for name in ("prompts.txt", "eval.txt"):
            (tmp_path / name).write_text("a red circle\n" * 8, encoding="utf-8")
        compose(path)
        return
    if {"project", "build-system", "tool"} & set(table):
        return
    faults = [fault for name, value in table.items() for fault in faults_of(name, value)]
    assert not faults, f"{page.name}: {faults}"


def faults_of(name, value):
    """Problems of one top-level key or table of a part of a run file; what is missing is none."""
    core = {heading[1:-1]: cls for heading, cls in settings_tables.OF_CORE.items()}
    if name in PLUGIN_TABLES:
        return faults_of_plugin(name, value)
    if name in ("reward", "observer"):
        return [f for key in value for f in faults_of_plugin(name, value[key])]
    if name == "evaluation":
        rest = {key: found for key, found in value.items() if key != "reward"}
        judges = [
            f
            for table in value.get("reward", {}).values()
            for f in faults_of_plugin("reward", table)
        ]
        return present(core["evaluation"], rest) + judges
    if name in core:
        return present(core[name], value)
    return present(core[""], {name: value})


def present(cls, table):
    return [p for p in checked_values(cls, table, "")[1] if "missing" not in p]


def faults_of_plugin(kind, table):
    """Problems of a plugin's table; without `use` its keys must be some plugin's."""
    core = {h[1:-1].split(".")[0]: c for h, c in settings_tables.OF_CORE.items()}.get(kind)
    own = {f.name for f in settings_tables.settings_of(core)} if core else set()
    settings = {key: value for key, value in table.items() if key not in {*own, "use"}}
    named = [(e, c) for e, c in shipped.everything() if e.kind == kind]
    if "use" in table:
        found = [cls for entry, cls in named if entry.name == table["use"]]
        return present(found[0], settings) if found else []  # a reader's own plugin
    if any(not present(cls, settings) for _, cls in named):
        return []
    return [f"no {kind} takes {settings}"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("optimizer", {"learning_rate": 1.0}),
        ("estimator", {"use": "leapalign", "couplings": 0.3}),
        ("evaluation", {"reward": {"a": {"use": "hpsv2.1", "margins": 3}}}),
        ("stepz", 3),
    ],
)
def test_a_wrong_part_is_found(name, value):
    assert faults_of(name, value)


def test_the_first_run_file_of_the_start_page_is_whole():
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert [is_whole(tomli.loads(body)) for body in blocks(text, "toml")] == [True]
    assert Path(ROOT / "README.md").is_file()
