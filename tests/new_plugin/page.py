"""docs/write-a-plugin.md as a reader follows it: files, parts of a run file, and commands."""

import re
import shlex
from pathlib import Path

import attrs
import tomli
import tomli_w

PAGE = Path(__file__).parents[2] / "docs" / "write-a-plugin.md"
BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<body>.*?)^```$", re.M | re.S)
PATH = re.compile(r"# ([\w./-]+\.(?:py|toml))\n")


@attrs.frozen(eq=False)
class Section:
    """What is under one heading."""

    title: str
    files: tuple[tuple[str, str], ...]
    """(path, text to append), the run file's apart."""
    tables: dict
    """Tables that replace the run file's."""
    commands: tuple[str, ...]


def sections():
    """Every section that has code."""
    found = []
    for part in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.M)[1:]:
        title, _, text = part.partition("\n")
        files, tables, commands = [], {}, []
        for block in BLOCK.finditer(text):
            if block["language"] == "bash":
                commands += block["body"].splitlines()
                continue
            path = PATH.match(block["body"])
            assert path, f"{title}: a block says no path: {block['body'][:60]!r}"
            if path[1] == "run.toml":
                tables |= tomli.loads(block["body"])
            else:
                files.append((path[1], block["body"].removeprefix(path[0])))
        if files or tables or commands:
            found.append(Section(title, tuple(files), tables, tuple(commands)))
    return found


def kinds():
    """The sections of the six kinds."""
    return [section for section in sections() if section.title != "An empty folder"]


def write(folder):
    """The package of the page, whole."""
    for section in sections():
        for path, text in section.files:
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a", encoding="utf-8") as out:
                out.write(text if file.suffix == ".py" else f"{text}\n")


def run_file(section):
    """The run file of the page with a section's tables in place of its own."""
    (first,) = [s for s in sections() if s.title == "An empty folder"]
    return tomli_w.dumps({**first.tables, **section.tables})


def headwater_commands(section):
    """The arguments of its commands that are headwater's."""
    lines = [shlex.split(line) for line in section.commands]
    return [words[1:] for words in lines if words[0] == "headwater"]
