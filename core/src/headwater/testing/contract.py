"""What every plugin owes, whatever its kind.

A contract is a plain pytest class. A subclass names its plugin by its entry point, each method is
one check, and a check that fails says what to change.
"""

from __future__ import annotations

import inspect
import pickle
import re
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from headwater.testing import tables

if TYPE_CHECKING:
    from headwater.installed import Entry
    from headwater.testing.fresh import Fresh


class PluginContract:
    """Checks of any kind of plugin. Subclass the contract of a kind, not this."""

    kind: ClassVar[str]
    hooks: ClassVar[tuple[str, ...]] = ()
    """Hooks that a plugin of this kind must implement."""
    name: ClassVar[str] = ""
    """Entry-point name, or `distribution:name` where two packages offer it."""
    settings: Any = {}
    """Keys of its table: a mapping, or a method that takes fixtures by name and returns one."""

    @pytest.fixture
    def entry(self, headwater_entry: Entry) -> Entry:
        """The plugin's metadata."""
        return headwater_entry

    @pytest.fixture
    def cls(self, entry: Entry) -> Any:
        """The plugin's class."""
        from headwater.discovery import import_class

        return import_class(entry)

    @pytest.fixture
    def plugin(self, cls: Any, headwater_table: dict[str, Any]) -> Any:
        """The plugin, made as a run makes it; nothing is loaded."""
        from headwater.settings import structure

        plugin, problems = structure(cls, headwater_table, f"[{self.kind}]")
        assert not problems, f"the contract's settings are refused: {'; '.join(problems)}"
        return plugin

    def test_it_is_found_through_its_entry_point(self, entry: Entry, cls: Any) -> None:
        """One distribution offers it, and its entry point leads to an attrs class with eq=False."""
        assert entry.version != "unknown", f"{entry.target} belongs to no installed distribution"
        assert inspect.isclass(cls)

    def test_it_fits_the_hook_specs(self, entry: Entry, plugin: Any) -> None:
        """Its hooks are marked, take the specs' arguments, and none of its kind is missing."""
        from headwater import hookspecs, observerspecs
        from headwater.composition import Named, new_manager, observer_manager, register

        observer = self.kind == "observer"
        specs = vars(observerspecs if observer else hookspecs)
        hooks = [name for name, spec in specs.items() if hasattr(spec, "headwater_spec")]
        for name in hooks:
            method = getattr(plugin, name, None)
            marked = hasattr(method, "headwater_impl")
            assert method is None or marked, (
                f"{name} has the name of a hook and is none: mark it with @headwater.hookimpl"
            )
        named = Named(self.kind, plugin, entry)
        if observer:
            observer_manager([named])
        else:
            register(new_manager(), named)
        own = [name for name in hooks if hasattr(plugin, name)]
        missing = [name for name in self.hooks if name not in own]
        assert not missing, f"{self.kind} plugins implement the hook {missing[0]}; add it"
        assert own or not observer, "it implements no hook, so it is told nothing; add after_step"

    def test_a_hook_implementation_has_no_defaults(self, cls: Any) -> None:
        """pluggy passes no argument that has a default: the default would always be used."""
        for name, method in inspect.getmembers(cls, inspect.isfunction):
            if not hasattr(method, "headwater_impl"):
                continue
            for parameter in list(inspect.signature(method).parameters.values())[1:]:
                plain = parameter.kind is parameter.POSITIONAL_OR_KEYWORD
                assert plain and parameter.default is parameter.empty, (
                    f"{name}({parameter}): make it a plain parameter without a default"
                )

    def test_it_declares_what_it_can_do(self, plugin: Any) -> None:
        """Its capabilities are there and have a meaning; so have `paper`, `metrics`, `choices`."""
        from headwater.capabilities import undeclared

        missing = undeclared(self.kind, plugin)
        assert not missing, f"declare {', '.join(missing)} as a class attribute"
        for name, valid in {**tables.DECLARED[self.kind], **tables.ANY}.items():
            value = getattr(plugin, name, tables.ABSENT)
            assert value is tables.ABSENT or valid.fits(value), (
                f"{name} is {value!r}; expected {valid.words}"
            )

    def test_its_settings_survive_toml(self, cls: Any, headwater_table: dict[str, Any]) -> None:
        """Defaults, the contract's settings and every choice of a word come back from TOML."""
        for table in tables.variants(cls, headwater_table):
            wrong = tables.lost(cls, table)
            assert not wrong, f"{wrong}; a run folder's run.toml would not give this plugin back"

    def test_an_unknown_key_is_refused(self, cls: Any, headwater_table: dict[str, Any]) -> None:
        """A misspelt key is an error that names it."""
        from headwater.settings import structure

        _, problems = structure(cls, {**headwater_table, "no_such_key": 1}, "[table]")
        assert any("no_such_key" in problem for problem in problems), (
            "a key that is no field is accepted; leave __init__ to attrs"
        )

    def test_a_value_of_a_wrong_type_is_refused(
        self, cls: Any, headwater_table: dict[str, Any]
    ) -> None:
        """Every field refuses a date, and text where a number is meant, with an error naming it."""
        for field, value in tables.misfits(cls):
            problem = tables.refusal(cls, {**headwater_table, field: value}, field)
            assert not problem, problem

    def test_nothing_is_done_at_import_or_construction(
        self, entry: Entry, headwater_table: dict[str, Any], headwater_fresh: Fresh
    ) -> None:
        """No file, socket, thread, heavy import, large tensor or random draw in a fresh process."""
        found = headwater_fresh.ask(entry.target, tables.plain(headwater_table))
        assert not found, f"{'; '.join(found)}. Do it in `load`, or where it is first needed"

    def test_it_compares_by_identity(
        self, cls: Any, plugin: Any, headwater_table: dict[str, Any]
    ) -> None:
        """Two of one class are two plugins: eq=False, and mutable fields of their own."""
        from headwater.discovery import class_fault
        from headwater.settings import structure

        fault = class_fault(cls)
        assert not fault, fault
        other, _ = structure(cls, headwater_table, "")
        shared = tables.shared_state(plugin, other)
        assert not shared, f"{shared} is one object in two plugins; use attrs.field(factory=...)"

    def test_it_pickles(self, plugin: Any) -> None:
        """Unloaded, it comes back from a pickle with the same settings."""
        from headwater.settings import unstructure

        try:
            again = pickle.loads(pickle.dumps(plugin))  # noqa: S301 - its own bytes
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
            pytest.fail(f"{type(error).__name__}: {error}; keep no lambda, lock or handle in it")
        assert type(again) is type(plugin)
        assert unstructure(again) == unstructure(plugin), "its settings change in a pickle"

    def test_everything_is_documented(self, cls: Any) -> None:
        """The class has a docstring, and every field one under it."""
        from headwater.settings import field_docs, settings_of

        assert cls.__doc__ and not cls.__doc__.startswith("Method generated by attrs"), (
            "write a docstring under the class: what it does, its source"
        )
        docs = field_docs(cls)
        bare = [f.name for f in settings_of(cls) if not docs.get(f.name)]
        assert not bare, f"write a docstring under the field {', '.join(bare)}: meaning, unit"

    def test_headwater_show_prints_it(self, entry: Entry, cls: Any) -> None:
        """`headwater show KIND NAME` prints its fields and what they mean."""
        from click.testing import CliRunner

        from headwater.cli.show import command
        from headwater.settings import field_docs, settings_of

        name = f"{entry.distribution}:{entry.name}"
        shown = CliRunner().invoke(command, [self.kind, name])
        assert shown.exit_code == 0, f"headwater show fails: {shown.exception!r}"
        text, docs = re.sub(r"\s+", " ", shown.output), field_docs(cls)
        for field in settings_of(cls):
            doc = re.sub(r"\s+", " ", docs.get(field.name, ""))
            assert f"{field.name}:" in text and doc in text, f"it does not show {field.name}"
