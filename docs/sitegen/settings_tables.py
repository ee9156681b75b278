"""Settings of plugins and of core's tables: key, what it takes, default, meaning."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

import attrs

from headwater import tables
from headwater.discovery import KINDS
from headwater.settings import expected, field_docs, settings_of
from sitegen import shipped, text

HEAD = ("key", "takes", "default", "meaning")
OF_CORE: dict[str, type] = {
    "": tables.Top,
    "[prompts]": tables.Prompts,
    "[rollout]": tables.RolloutTable,
    "[reward.KEY]": tables.RewardKeys,
    "[algorithm]": tables.AlgorithmKeys,
    "[estimator]": tables.EstimatorKeys,
    "[engine]": tables.EngineTable,
    "[optimizer]": tables.Optimizer,
    "[guard]": tables.GuardTable,
    "[evaluation]": tables.Evaluation,
    "[output]": tables.OutputTable,
}
"""Heading: class, of every table that core reads; `use` of plugin tables stands in the prose."""


def rows(cls: type) -> list[list[str]]:
    """One row a setting; ValueError where a setting has no docstring."""
    docs = field_docs(cls)
    out = []
    for field in settings_of(cls):
        if holds_plugins(field.type):
            continue  # tables of their own
        if not docs.get(field.name):
            raise ValueError(f"{cls.__module__}.{cls.__name__}.{field.name} has no docstring")
        meaning = text.escaped(docs[field.name])
        default = text.value(field.default) or "required"
        out.append([f"`{field.name}`", text.escaped(takes(field)), default, meaning])
        nested = nested_class(field.type)
        if nested is not None:
            out += [[f"`{field.name}.{row[0][1:]}", *row[1:]] for row in rows(nested)]
    return out


def holds_plugins(kind: Any) -> bool:
    """Whether a field is a mapping of plugin tables."""
    return tables.PluginTable in getattr(kind, "__args__", ())


def nested_class(kind: Any) -> type | None:
    """The attrs class of a table within a table."""
    return kind if isinstance(kind, type) and attrs.has(kind) else None


def takes(field: attrs.Attribute[Any]) -> str:
    """Type and range of a field, in the words of its validators."""
    kind = expected(field.type)
    ranges = [found for check in validators(field.validator) if (found := words(check, field))]
    if not ranges:
        return kind
    found = " and ".join([ranges[0], *(part.removeprefix("a number ") for part in ranges[1:])])
    whole = kind.startswith("a whole number") and found.startswith("a number")
    found = found.replace("a number", "a whole number", 1) if whole else found
    rest = [part for part in kind.split(" or ") if part not in ("a number", "a whole number")]
    if " or " in found:  # the validator names the words beside the numbers itself
        return found
    return " or ".join([found, *rest]) if "number" in kind and found.startswith("a ") else kind


def validators(found: Any) -> list[Any]:
    """The single validators of a field."""
    if found is None:
        return []
    return list(getattr(found, "_validators", [found]))


def words(check: Any, field: attrs.Attribute[Any]) -> str:
    """What a validator says that it expects, asked by a value that no range holds."""
    try:
        check(None, field, float("nan"))
    except ValueError as error:
        said = re.fullmatch(r"expected (.+), got nan", str(error))
        return said[1] if said else ""
    except (TypeError, AttributeError):
        return ""  # it reads lists or text
    return ""


def of_class(cls: type) -> str:
    """The settings table of a class, or that there is none."""
    found = rows(cls)
    return text.table(HEAD, found) if found else "No settings."


def of_core() -> str:
    """Every table of a run file that core reads, under headings."""
    out = []
    for heading, cls in OF_CORE.items():
        description = (inspect.getdoc(cls) or "").partition(": ")[2] or inspect.getdoc(cls)
        head = f"### `{heading}`" if heading else "### Above all tables"
        said = text.escaped(str(description))
        out += [head, said[0].upper() + said[1:], of_class(cls)]
    return "\n\n".join(out)


def of_kind(kind: str) -> str:
    """Every plugin of a kind: heading, docstring, capabilities, settings."""
    if kind not in KINDS:
        raise ValueError(f"no kind {kind!r}")
    out = []
    for entry in shipped.plugins(kind):
        cls = shipped.plugin(kind, entry.name)[1]
        out += [f"### {entry.name}", about(kind, entry.name), of_class(cls), metrics(cls)]
    return "\n\n".join(part for part in out if part)


def about(kind: str, name: str) -> str:
    """Package, paper, capabilities and docstring of a plugin."""
    entry, cls = shipped.plugin(kind, name)
    facts = [f"{kind.capitalize()}, package `{entry.distribution}` (`{shipped.folder(entry)}`)"]
    paper = str(getattr(cls, "paper", ""))
    if paper:
        facts.append(link(paper))
    facts += capabilities(cls)
    facts_line = "; ".join(facts) + "."
    return f"{facts_line}\n\n{text.docstring(inspect.getdoc(cls) or '')}"


def link(paper: str) -> str:
    """A paper as a link."""
    number = paper.removeprefix("arXiv ")
    return f"[{paper}](https://arxiv.org/abs/{number})" if number != paper else f"<{paper}>"


def capabilities(cls: type) -> list[str]:
    """What a class declares, in words."""
    out = []
    upstream = getattr(cls, "upstream", None)
    if isinstance(upstream, str):
        out.append(f"{upstream} upstream")
    differentiable = getattr(cls, "differentiable", None)
    if isinstance(differentiable, bool):
        out.append("differentiable" if differentiable else "not differentiable")
    guidance = getattr(cls, "guidance_kind", None)
    if isinstance(guidance, str):
        out.append(f"guidance {guidance}")
    return out


def metrics(cls: type) -> str:
    """What the names that a plugin logs mean."""
    declared: Mapping[str, str] = getattr(cls, "metrics", {})
    if not declared:
        return ""
    found = [[f"`{name}`", text.escaped(meaning)] for name, meaning in declared.items()]
    return text.table(("metric", "meaning"), found)
