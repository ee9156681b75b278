"""The reference pages say what the code has, read from the code another way."""

import inspect
import re

import attrs
import pluggy
import pytest
from click.testing import CliRunner
from docs.site_words import ROOT, blocks, expanded, options
from sitegen import methods, settings_tables, shipped

from headwater import errors, hookspecs, observerspecs
from headwater.cli import main
from headwater.discovery import KINDS
from headwater.markers import PROJECT
from headwater.settings import field_docs, settings_of

PLUGINS = [(entry.kind, entry.name) for entry, _ in shipped.everything()]


def under(page, heading):
    """Names of the third-level headings under one of the second level."""
    part = re.split(r"^## ", expanded(page), flags=re.M)
    (found,) = [text for text in part if text.startswith(f"{heading}\n")]
    return re.findall(r"^### (.+)$", found, re.M)


@pytest.mark.parametrize(
    ("heading", "module"), [("The six hooks", hookspecs), ("Observers", observerspecs)]
)
def test_every_hook_is_documented_and_no_other(heading, module):
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(module)
    known = {name for name in vars(manager.hook) if not name.startswith("_")}
    assert set(under("reference/hooks.md", heading)) == known


def test_the_hooks_are_shown_with_their_parameters():
    page = expanded("reference/hooks.md")
    for specs in (hookspecs, observerspecs):
        for name, function in inspect.getmembers(specs, inspect.isfunction):
            shown = [b for b in blocks(page, "python") if b.startswith(f"{name}(")]
            if function.__module__ == specs.__name__:
                assert len(shown) == 1
                names = re.findall(r"(\w+): ", shown[0])
                assert names == list(inspect.signature(function).parameters)


def help_of(*words):
    result = CliRunner().invoke(main, [*words, "--help"])
    assert result.exit_code == 0
    return result.output


def test_every_command_is_in_the_reference():
    listed = set(re.findall(r"^  ([a-z][\w-]+)  ", help_of().partition("Commands:")[2], re.M))
    mine = {name for name in listed if name in shipped.commands()}
    shown = {
        name.removeprefix("headwater ") for name in under("reference/command-line.md", "Commands")
    }
    assert shown == mine
    assert {
        "run",
        "check",
        "plan",
        "plugins",
        "show",
        "sample",
        "eval",
        "export",
        "compare",
    } <= shown


@pytest.mark.parametrize("command", shipped.commands())
def test_every_option_of_a_command_is_in_its_table(command):
    said = help_of(command).partition("Options:")[2]
    offered = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", said, re.M))
    offered |= set(re.findall(r" / (--[\w-]+)", said))
    text = expanded("reference/command-line.md")
    part = re.split(r"^### |^## ", text, flags=re.M)
    (section,) = [p for p in part if p.startswith(f"headwater {command}\n")]
    firsts = [methods.cells(line)[0] for line in section.splitlines() if line.startswith("| `--")]
    shown = {option for first in firsts for option in re.findall(r"`(--[\w-]+)`", first)}
    assert shown == offered


def test_every_command_is_told_of_outside_the_reference():
    pages = [p for p in (ROOT / "docs").rglob("*.md") if p.name != "command-line.md"]
    prose = " ".join(p.read_text(encoding="utf-8") for p in [*pages, ROOT / "README.md"])
    untold = [name for name in shipped.commands() if not re.search(rf"headwater {name}\b", prose)]
    assert not untold


@pytest.mark.parametrize(("kind", "name"), PLUGINS)
def test_every_setting_of_a_plugin_has_a_docstring_and_stands_on_its_page(kind, name):
    cls = shipped.plugin(kind, name)[1]
    docs = field_docs(cls)
    table = settings_tables.of_class(cls)
    for field in settings_of(cls):
        assert docs.get(field.name), f"{field.name} of {kind} {name} has no docstring"
        assert f"\n| `{field.name}` |" in table
    pages = [p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")]
    assert any(table in expanded(page) for page in pages)


def test_every_shipped_plugin_is_installed_and_listed():
    page = expanded("reference/plugins.md")
    for kind in KINDS:
        assert {e.name for e in shipped.plugins(kind)} == shipped.offered(kind)
        for name in shipped.offered(kind):
            assert f"| `headwater.{kind}` | `{name}` |" in page


def test_every_estimator_stands_in_the_table_of_choices_once():
    page = expanded("choose.md").partition("## By situation")[0]
    for name in shipped.offered("estimator"):
        assert len(re.findall(rf"^\| \[`{name}`\]\(", page, re.M)) == 1, name


def test_our_own_estimators_declare_their_choices():
    for entry in shipped.plugins("estimator"):
        if shipped.folder(entry).startswith("plugins/"):
            declared = shipped.plugin("estimator", entry.name)[1].choices
            assert tuple(declared) == methods.CHOICES
            assert all(declared.values())


def test_every_key_of_the_run_file_is_in_its_reference():
    page = expanded("reference/run-file.md")
    for heading, cls in settings_tables.OF_CORE.items():
        title = f"### `{heading}`" if heading else "### Above all tables"
        section = page.partition(f"{title}\n")[2].partition("\n### ")[0]
        shown = re.findall(r"^\| `([\w.]+)` \|", section.partition("\n## ")[0], re.M)
        known = [f.name for f in attrs.fields(cls) if not settings_tables.holds_plugins(f.type)]
        assert shown == known


def test_ranges_in_the_reference_are_those_of_the_validators():
    rows = {row[0]: row for row in settings_tables.rows(settings_tables.OF_CORE["[optimizer]"])}
    assert rows["`lr`"][1:3] == ["a number above 0", "`0.0001`"]
    assert rows["`ema`"][1:3] == ["a number from 0 to below 1", "`0.995`"]
    assert rows["`warmup`"][1:3] == ["a whole number of at least 0", "`0`"]
    assert rows["`schedule`"][1:3] == ["one of 'constant', 'cosine'", '`"constant"`']


def family(cls):
    return {cls, *(c for child in cls.__subclasses__() for c in family(child))}


def test_errors_and_exit_codes_are_those_of_the_code():
    from headwater import http_failures

    assert http_failures.ServiceError.exit_code == 1
    page = expanded("reference/command-line.md")
    shown = dict(re.findall(r"^\| `(\w+Error)` \| (\d+) \|", page, re.M))
    known = {
        cls.__name__: str(cls.exit_code)
        for cls in family(errors.HeadwaterError)
        if cls.__module__.split(".")[0] == "headwater"
    }
    assert shown == known
    table = set(re.findall(r"^\| (\d+) \| ", page.partition("## Errors")[2], re.M))
    assert table == {"0", "130", *known.values()}


def test_the_exit_codes_of_running_are_the_same():
    running = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
    said = running.partition("## Exit codes\n")[2].partition("\n\nThe first")[0]
    assert re.findall(r"(?:^|; )\s*(\d+) ", said.replace("\n", " ").strip()) == [
        "0",
        "1",
        "2",
        "3",
        "130",
    ]


def test_an_option_is_known_by_the_commands_that_have_it():
    assert set(options()["--rollouts"]) == {"compare", "probe"}
