"""The pages as their readers see them, and what a word in code may mean."""

import re
import shlex
from functools import cache
from pathlib import Path

import click
from sitegen import directives, settings_tables, shipped

from headwater.settings import settings_of

ROOT = Path(__file__).parents[2]
HAND_WRITTEN = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^ *```$", re.M | re.S)


@cache
def expanded(page):
    """A page with its generated parts."""
    return directives.expand((ROOT / "docs" / page).read_text(encoding="utf-8"), page)


def blocks(text, *languages):
    """Bodies of the code blocks in these languages."""
    return [m["body"] for m in FENCE.finditer(text) if m["language"] in languages]


def spans(text):
    """Code within prose and tables."""
    plain = re.sub(r"<!--.*?-->", "", FENCE.sub("", text), flags=re.S)
    return [found.replace(r"\|", "|") for found in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", plain)]


def command_lines(text):
    """(command, arguments) of every line of a shell block that calls headwater itself."""
    found = []
    for body in blocks(text, "", "bash", "sh", "console"):
        for line in re.sub(r"\\\n\s*", " ", body).splitlines():
            words = shlex.split(line.replace("$(which headwater)", "headwater"), comments=True)
            if "headwater" in words:
                name, *arguments = words[words.index("headwater") + 1 :]
                found.append((name, arguments))
    return found


@cache
def holders():
    """Setting name: every (class, field) of a run file or a shipped plugin that has it."""
    classes = [*settings_tables.OF_CORE.values(), *(cls for _, cls in shipped.everything())]
    found = {}
    for cls in classes:
        for name, field in fields(cls):
            found.setdefault(name, []).append((cls, field))
    return found


def fields(cls):
    """(name, field) of a class and of the tables within it."""
    for field in settings_of(cls):
        yield field.name, field
        nested = settings_tables.nested_class(field.type)
        if nested is not None:
            yield from fields(nested)


@cache
def options():
    """Option: the commands that have it."""
    found = {"--help": [], "--version": []}
    for name, (command, _) in shipped.commands().items():
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                for option in (*parameter.opts, *parameter.secondary_opts):
                    found.setdefault(option, []).append(name)
    return found


@cache
def words():
    """Every word of the repository's code, tests and project files left out."""
    found = set()
    for shelf in ("core/src", "plugins/*/src", "contrib/*/src", "bench", "docs/sitegen"):
        for folder in ROOT.glob(shelf):
            for file in folder.rglob("*.py"):
                found |= set(re.findall(r"[A-Za-z_][\w-]*\w|\w", file.read_text(encoding="utf-8")))
    return found
