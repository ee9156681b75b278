"""The packages of the workspace, as their pyproject.toml and their modules describe them."""

import ast
import re
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

import attrs
import tomli
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def packages():
    """Folders of the Makefile's PACKAGES, relative to the root."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    return re.search(r"^PACKAGES := (.*)$", text, re.M)[1].split()


@cache
def project(folder):
    """The table [project] of a package."""
    return tomli.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def module_of(folder):
    """The one folder of modules in its src."""
    (found,) = [p for p in (ROOT / folder / "src").iterdir() if p.is_dir()]
    return found


def names(requirements):
    """Canonical names of requirements."""
    return {canonicalize_name(Requirement(text).name) for text in requirements}


@cache
def providers():
    """Top-level module: the distributions that hold it."""
    return metadata.packages_distributions()


TEST_KIT = ROOT / "core" / "src" / "headwater" / "testing"
"""Nothing imports it but tests; what it needs is in core's extras."""

OF_MODULE = {"mlflow": "mlflow-skinny"}
"""Where an extra is not installed, or several distributions hold one module."""


def distribution_of(module):
    """The distribution that a package must ask for to import a module."""
    if module in OF_MODULE:
        return OF_MODULE[module]
    found = {canonicalize_name(name) for name in providers().get(module, [])}
    if not found:
        own = {module_of(folder).name: project(folder)["name"] for folder in packages()}
        found = {canonicalize_name(own.get(module, module))}
    assert len(found) == 1, f"{module} is in {sorted(found)}; say which in OF_MODULE"
    return found.pop()


@attrs.frozen(eq=False)
class Import:
    """One import of a third-party module."""

    distribution: str
    place: str
    """File and line."""
    optional: bool
    """Within a function, or for types alone: importing the file does without it."""


@cache
def imports(folder):
    """What the modules of a package import beside themselves and the standard library."""
    own = module_of(folder)
    found = []
    for path in sorted(own.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node, optional in _walk(tree, within=False):
            for module in _modules(node):
                top = module.split(".")[0]
                if top not in sys.stdlib_module_names and top != own.name:
                    place = f"{path.relative_to(ROOT)}:{node.lineno}"
                    for_tests = path.is_relative_to(TEST_KIT)
                    found.append(Import(distribution_of(top), place, optional or for_tests))
    return found


def _walk(node, *, within):
    """Every node, and whether it is in a function or under TYPE_CHECKING."""
    for child in ast.iter_child_nodes(node):
        lazy = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or (
            isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        )
        yield child, within
        yield from _walk(child, within=within or lazy)


def _modules(node):
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [] if node.level else [node.module]
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
        return [a.value for a in node.args[:1] if isinstance(a, ast.Constant)]
    return []
