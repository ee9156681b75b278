"""The tables of docs/testing.md, from the docstrings of the contracts' checks.

`python tests/testing/contract_tables.py` writes them into the page.
"""

import inspect
from pathlib import Path

import headwater.testing as kit
from headwater.testing.contract import PluginContract
from headwater.testing.loaded import LoadedContract
from headwater.testing.training import TrainingContract

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
BEGIN, END = "<!-- checks: begin -->\n", "<!-- checks: end -->\n"
SHARED = {
    "Any plugin": (PluginContract,),
    "In a run, any plugin": (TrainingContract,),
    "With weights: backbones and rewards": (LoadedContract,),
}


def checks(*classes):
    """{sentence: what it says} of the checks that the classes themselves define."""
    out = {}
    for cls in classes:
        for name, method in vars(cls).items():
            if name.startswith("test_"):
                sentence = name.removeprefix("test_").replace("_", " ")
                out[sentence] = " ".join(inspect.getdoc(method).split())
    return out


def own_classes(contract):
    """A contract's classes but for the shared ones."""
    shared = {cls for classes in SHARED.values() for cls in classes} | {object}
    return [cls for cls in contract.__mro__ if cls not in shared]


def tables():
    """Markdown of all contracts."""
    parts = dict(SHARED)
    for name in kit.__all__:
        contract = getattr(kit, name)
        if isinstance(contract, type) and issubclass(contract, PluginContract):
            parts[f"`{name}`"] = own_classes(contract)
    lines = []
    for title, classes in parts.items():
        lines += [f"### {title}", "", "| check | what it holds against the plugin |", "|---|---|"]
        lines += [
            f"| {name} | {text.replace('|', chr(92) + '|')} |"
            for name, text in checks(*classes).items()
        ]
        lines.append("")
    return "\n".join(lines)


def whole(text):
    """The page with the tables in it."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{tables()}\n{END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(whole(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
