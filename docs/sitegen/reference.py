"""The reference pages: command line, hooks, protocols, Python names, errors, entry points."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import click

import headwater
from headwater import engine, errors, hookspecs, observerspecs, protocols, summary, types
from sitegen import shipped, text


def command_line() -> str:
    """Every command: usage, what it does, its arguments and options."""
    out = []
    for name, (command, owner) in shipped.commands().items():
        context = click.Context(command, info_name=f"headwater {name}")
        usage = command.get_usage(context).removeprefix("Usage: ")
        out += [f"### headwater {name}", f"```\n{usage}\n```"]
        said = text.docstring(inspect.cleandoc(command.help or ""))
        out.append(said if owner == "headwater" else f"{said}\n\nFrom the package `{owner}`.")
        out.append(text.table(("option", "default", "meaning"), _options(command)))
    return "\n\n".join(part for part in out if part)


def _options(command: click.Command) -> list[list[str]]:
    out = []
    for parameter in command.params:
        if not isinstance(parameter, click.Option):
            continue
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        if not parameter.is_flag:
            names += f" {_metavar(parameter)}"
        if parameter.multiple:
            names += ", repeatable"
        if not parameter.help:
            raise ValueError(f"the option {parameter.opts[0]} of {command.name} has no help")
        out.append([names, _default(parameter), text.escaped(parameter.help)])
    return [*out, ["`--help`", "", "Say this."]]


def _metavar(option: click.Option) -> str:
    found = option.metavar or option.type.get_metavar(option, click.Context(click.Command("x")))
    return f"`{found or option.type.name.upper()}`"


def _default(option: click.Option) -> str:
    found = option.to_info_dict()["default"]
    if option.required:
        return "required"
    if found is None or option.is_flag or option.multiple or callable(found):
        return ""
    return f"`{found}`"


def hooks(module: ModuleType) -> str:
    """Every hook specification of a module: signature and docstring, in the file's order."""
    out = []
    for name, function in own(module, inspect.isfunction):
        out += [
            f"### {name}",
            signature(name, function),
            text.docstring(inspect.cleandoc(str(function.__doc__))),
        ]
    return "\n\n".join(out)


def own(module: ModuleType, kind: Callable[[Any], bool]) -> list[tuple[str, Any]]:
    """Public members that a module defines itself, in the file's order."""
    found = [
        (name, member)
        for name, member in vars(module).items()
        if not name.startswith("_") and kind(member) and member.__module__ == module.__name__
    ]
    return sorted(found, key=lambda pair: inspect.getsourcelines(pair[1])[1])


def signature(name: str, function: Any) -> str:
    """A function's signature as a code block, one parameter a line where it is long."""
    found = inspect.signature(function)
    text_ = f"{name}{found}".replace("'", "")
    if len(text_) > 90:
        inner = ",\n    ".join(str(p).replace("'", "") for p in found.parameters.values())
        given = found.return_annotation
        arrow = "" if given is found.empty else f" -> {given}".replace("'", "")
        text_ = f"{name}(\n    {inner},\n){arrow}"
    return f"```python\n{text_}\n```"


def protocol_reference() -> str:
    """Every class of `protocols`, its attributes and methods; first what any plugin may have."""
    out = [text.docstring(optional_methods())]
    for name, cls in own(protocols, inspect.isclass):
        out += [f"### {name}", text.docstring(inspect.getdoc(cls) or "")]
        out += [_member(key, member) for key, member in vars(cls).items() if _documented(member)]
    return "\n\n".join(out)


def optional_methods() -> str:
    """The module's docstring with one paragraph for each thing that a plugin may have."""
    lines = str(protocols.__doc__).splitlines()
    begins = ("Any plugin may", "A backbone or a reward may")
    return "\n".join(f"\n{line}" if line.startswith(begins) else line for line in lines)


def _documented(member: Any) -> bool:
    return inspect.isfunction(member) and bool(member.__doc__) and member.__name__[0] != "_"


def _member(name: str, function: Any) -> str:
    found = inspect.signature(function)
    plain = found.replace(parameters=list(found.parameters.values())[1:])
    shown = f"{name}{plain}".replace("'", "")
    return f"`{shown}`\n\n{text.docstring(inspect.getdoc(function) or '')}"


def python_names() -> str:
    """The stable Python names, with signatures and docstrings."""
    functions = {
        "headwater.load": headwater.load,
        "headwater.compose": headwater.compose,
        "headwater.run": headwater.run,
        "headwater.engine.backpropagate": engine.backpropagate,
    }
    classes = {
        "headwater.types": (types.Rollout, types.Group, types.Surrogate, types.Credit, types.Batch),
        "headwater.summary": (summary.Summary,),
    }
    out = []
    for name, function in functions.items():
        out += [f"### {name}", signature(name.rpartition(".")[2], function)]
        out.append(text.docstring(inspect.getdoc(function) or ""))
    for module, members in classes.items():
        for cls in members:
            out += [f"### {module}.{cls.__name__}", text.docstring(inspect.getdoc(cls) or "")]
            out.append(_fields(cls))
    return "\n\n".join(out)


def _fields(cls: type) -> str:
    from headwater.settings import field_docs

    docs = field_docs(cls)
    fields = getattr(cls, "__attrs_attrs__", ())
    rows = [[f"`{f.name}`", text.escaped(docs.get(f.name, ""))] for f in fields if f.init]
    return text.table(("field", "meaning"), rows) if rows else ""


def error_table() -> str:
    """Every error of the family with its exit code."""
    found = [cls for _, cls in own(errors, inspect.isclass)]
    found += [cls for cls in subclasses(errors.HeadwaterError) if cls not in found]
    rows = [[f"`{cls.__name__}`", str(cls.exit_code), first_line(cls)] for cls in found]
    return text.table(("error", "exit code", "when"), rows)


def subclasses(cls: type) -> list[type]:
    """Every subclass within `headwater` itself, its modules imported."""
    from headwater import http_failures

    assert issubclass(http_failures.ServiceError, cls)
    direct = [c for c in cls.__subclasses__() if c.__module__.startswith("headwater.")]
    deeper = [c for child in direct for c in subclasses_of(child)]
    return sorted({*direct, *deeper}, key=lambda c: (c.__module__, c.__name__))


def subclasses_of(cls: type) -> list[type]:
    """All below a class."""
    return [c for child in cls.__subclasses__() for c in (child, *subclasses_of(child))]


def entry_points() -> str:
    """Every shipped plugin: kind, name, package."""
    rows = [
        [f"`headwater.{entry.kind}`", f"`{entry.name}`", f"`{entry.distribution}`", first_line(cls)]
        for entry, cls in shipped.everything()
    ]
    return text.table(("entry-point group", "name", "package", "what"), rows)


def first_line(cls: type) -> str:
    """The first paragraph of a class's docstring."""
    return text.escaped((inspect.getdoc(cls) or "").split("\n\n")[0])


def hook_pages() -> dict[str, Callable[[], str]]:
    """What `hooks` and `observer-hooks` stand for."""
    return {
        "hooks": lambda: hooks(hookspecs),
        "observer-hooks": lambda: hooks(observerspecs),
    }
