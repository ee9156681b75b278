"""A key, option, command, plugin or file that a page names exists."""

import re
from functools import cache
from pathlib import Path

import click
import pytest
import tomli
from docs.site_words import HAND_WRITTEN, ROOT, command_lines, holders, options, spans, words
from sitegen import settings_tables, shipped

from headwater.composition import compose
from headwater.settings import CONVERTER, checked_values

IDS = [page.relative_to(ROOT).as_posix() for page in HAND_WRITTEN]
FOREIGN = {"--nproc_per_node", "--num_processes", "--cpu", "--use_fsdp", "--fsdp_version"}
FOREIGN |= {"--deepspeed_config_file"}
"""Options of torchrun and accelerate."""
FOREIGN_NAMES = {"no_sync"}
"""Names of torch that pages speak of and the code does not use."""
READERS_OWN = {"every-other", "some-steps", "warmth", "letters", "saturating", "root-noise"}
READERS_OWN |= {"best-step"}
"""Plugins that a page teaches its reader to write."""
PLUGIN_TABLES = {"backbone", "dynamics", "algorithm", "estimator", "reward", "observer"}


def parsed(name, arguments):
    """Parse a command line with the real parser; nothing runs."""
    assert name in shipped.commands(), f"no command headwater {name}"
    return shipped.commands()[name][0].make_context(name, list(arguments))


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=IDS)
def test_every_command_line_of_a_page_is_accepted_by_the_parser(page):
    for name, arguments in command_lines(page.read_text(encoding="utf-8")):
        arguments = [a for a in arguments if a not in ("…", "...")]
        try:
            context = parsed(name, arguments) if name != "--help" else None
        except click.ClickException as error:
            pytest.fail(f"headwater {name} {' '.join(arguments)}: {error.format_message()}")
        if context is None:
            continue
        files = [Path(a) for a in arguments if re.match(r"(plugins|contrib|bench)/", a)]
        for file in files:
            assert (ROOT / file).is_file(), f"{file} of a command does not exist"
        overrides = context.params.get("overrides") or ()
        if files and overrides:
            compose(ROOT / files[0], overrides)


def known_table(name):
    """Classes whose keys a table may hold; None for a table of another file."""
    head = name.split(".")[0]
    if name.startswith("evaluation.reward"):
        head = "reward"
    core = [c for h, c in settings_tables.OF_CORE.items() if h[1:-1].split(".")[0] == head]
    if head in PLUGIN_TABLES:
        return core + [cls for entry, cls in shipped.everything() if entry.kind == head]
    return core or None


def accepted(key, text):
    """Whether some holder of a key takes a value; what is no TOML is a placeholder."""
    try:
        value = tomli.loads(f"value = {text}")["value"]
    except tomli.TOMLDecodeError:
        return not re.fullmatch(r"[a-z-]+", text)  # a bare lower-case word would be a typing error
    if isinstance(value, str) and re.fullmatch(r"[A-Z:]+", value):
        return True  # a placeholder
    for _, field in holders().get(key, []):
        try:
            made = CONVERTER.structure(value, field.type)
            if field.converter is not None:
                made = field.converter(made)
            if field.validator is not None:
                field.validator(None, field, made)
        except ValueError:
            continue
        return True
    plugins = {entry.name for entry, _ in shipped.everything()} | READERS_OWN
    return key == "use" and value in plugins


def values_of(text):
    """The alternatives of `"a" | "b"`."""
    return [part.strip() for part in re.split(r" \| ", text) if part.strip() not in ("…", "...")]


def fault(span):
    """What is wrong with a word in code, or an empty text."""
    if found := re.fullmatch(r"\[([a-z][\w.-]*)\](?: (\w+)(?: = (.+))?)?", span):
        classes = known_table(found[1])
        if classes is None:
            return "" if found[1] in ("project", "build-system") else "no such table"
        keys = {field.name for cls in classes for field in settings_tables.settings_of(cls)}
        if found[2] and found[2] not in {*keys, "use", "reward"}:
            return "no such key in the table"
        wrong = [v for v in values_of(found[3] or "") if not accepted(found[2], v)]
        return f"no holder takes {wrong}" if wrong else ""
    if found := re.fullmatch(r"([a-z]\w*(?:\.\w+)*) = (.+)", span):
        key = found[1].rpartition(".")[2]
        if found[2] in ("True", "False", "None"):  # Python, not TOML
            return "" if key in words() else "the code has no such name"
        if key not in holders() and key != "use":
            return "no such key"
        wrong = [v for v in values_of(found[2]) if not accepted(key, v)]
        return f"no holder takes {wrong}" if wrong else ""
    if span.startswith("headwater "):
        return fault_of_command(span.split()[1:])
    if span.startswith("--"):
        known = {*options(), *FOREIGN, *options_of_benchmarks()}
        return "" if span.split()[0] in known else "no such option"
    return fault_of_word(span)


def fault_of_command(found):
    """A command in prose may leave out arguments, but not invent options."""
    name = found[0]
    if name.startswith("--") or name == "…":
        return ""
    if name not in shipped.commands():
        return "no such command"
    given = [word for word in found[1:] if word.startswith("--")]
    wrong = [o for o in given if name not in options().get(o, []) and o != "--help"]
    return f"no option {wrong}" if wrong else ""


def fault_of_word(span):
    """Names made of small letters must occur in the code, be a plugin, or be a file."""
    if not re.fullmatch(r"[a-z][\w.-]*(?:/[\w.*-]+)*/?", span):
        return ""
    if re.match(r"(plugins|contrib|core|docs|bench|tests)/", span):
        there = any(ROOT.glob(span.rstrip("/"))) or (ROOT / "docs" / span).exists()
        return "" if there or span in text_of_code() else "no such file"
    if "/" in span:  # a metric, or a file of a run folder
        first = span.split("/")[0]
        return "" if span in text_of_code() or first in words() else "no such name"
    if re.search(r"\.(toml|txt|jsonl?|md|png|py|pt|safetensors)$", span):
        return ""  # a file of the reader's
    names = {entry.name for entry, _ in shipped.everything()} | set(shipped.projects())
    names |= {*holders(), *shipped.commands(), *FOREIGN_NAMES, *READERS_OWN}
    known = span in names or all(part in words() for part in span.split("."))
    return "" if known else "the code has no such name"


def options_of_benchmarks():
    return set(
        re.findall(r'"(--[\w-]+)"', " ".join(p.read_text() for p in ROOT.glob("bench/*.py")))
    )


@cache
def text_of_code():
    return " ".join(p.read_text(encoding="utf-8") for p in (ROOT / "core" / "src").rglob("*.py"))


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=IDS)
def test_every_key_option_and_name_in_code_exists(page):
    found = {span: fault(span) for span in spans(page.read_text(encoding="utf-8"))}
    assert {span: why for span, why in found.items() if why} == {}


@pytest.mark.parametrize(
    "span",
    [
        "[optimizer] learning_rate",
        "[optimiser]",
        '[engine] mode = "streams"',
        "micro_batches = 4",
        'routed = "sometimes"',
        "estimator.couplings = 0.3",
        "headwater trian run.toml",
        "headwater plan --moods",
        "--set-key",
        "flowbp-lagrangian",
        "advantage_clipping",
        "plugins/flowbp/examples/none.toml",
    ],
)
def test_a_name_that_does_not_exist_is_found(span):
    assert fault(span)


def test_a_command_line_with_an_unknown_option_is_found():
    with pytest.raises(click.ClickException):
        parsed("plan", ["run.toml", "--no-such-option"])
    with pytest.raises(AssertionError):
        parsed("trian", ["run.toml"])


def test_checked_values_is_what_accepts_a_key():
    cls = settings_tables.OF_CORE["[engine]"]
    assert checked_values(cls, {"mode": "fused"}, "")[1] == []
    assert checked_values(cls, {"moood": "fused"}, "")[1] != []
