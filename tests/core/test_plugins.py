"""Broken, unknown, ambiguous and outdated plugins name themselves, and disturb no one else."""

import json
import re

import pytest
from click.testing import CliRunner

import headwater
from headwater.cli import main
from headwater.composition import compose
from headwater.errors import InputError, PluginError

GOOD = """
    import attrs, torch
    from headwater import hookimpl
    from headwater.types import Surrogate

    @attrs.frozen(eq=False)
    class Mine:
        upstream = "endpoint"
        endpoint = "sample"
        @hookimpl
        def build_surrogate(self, rollout):
            return Surrogate((), rollout.state(rollout.steps), None, rollout)
"""


def one_problem(path):
    with pytest.raises(InputError) as caught:
        compose(path)
    (problem,) = caught.value.problems
    return problem


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("import nothing_of_that_name", "No module named 'nothing_of_that_name'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("class Other: pass", "has no attribute 'Mine'"),
        ("def Mine(): pass", "is not a class"),
        ("class Mine: pass", "is not an attrs class"),
        ("import attrs\n@attrs.define\nclass Mine: pass", "compares by value"),
        ("import attrs\n@attrs.define(eq=False)\nclass Mine: pass", "does not declare upstream"),
        (GOOD.replace("self, rollout", "self, rollout, extra"), "does not fit the hooks"),
        (GOOD.replace("def build_surrogate", "def build_surrogat"), "does not fit the hooks"),
    ],
)
def test_a_broken_plugin_is_blamed_by_key_package_version_and_path(
    run_file, package, source, cause
):
    import textwrap

    package("their-package", {"estimator mine": "Mine"}, textwrap.dedent(source), "2.3")
    path = run_file({'use = "toy-bptt"': 'use = "mine"'})
    problem = one_problem(path)
    assert cause in problem
    assert "[estimator]" in problem
    assert "their-package 2.3 (their_package:Mine)" in problem
    assert "\n" not in problem.rstrip()


def test_a_broken_plugin_that_nobody_named_is_a_row(run_file, package):
    package("their-package", {"estimator mine": "Mine"}, "raise RuntimeError('boom')")
    compose(run_file())
    plain = CliRunner().invoke(main, ["plugins"])
    assert plain.exit_code == 0
    assert "mine" in plain.output
    checked = CliRunner().invoke(main, ["plugins", "--check", "--json"])
    assert checked.exit_code == 1
    faults = {row["name"]: row["fault"] for row in json.loads(checked.output)}
    assert "RuntimeError: boom" in faults["mine"]
    assert [name for name, fault in faults.items() if fault] == ["mine"]


def test_one_name_from_two_packages_must_be_settled(run_file, package):
    package("first-package", {"estimator mine": "Mine"}, GOOD)
    package("second-package", {"estimator mine": "Mine"}, GOOD)
    problem = one_problem(run_file({'use = "toy-bptt"': 'use = "mine"'}))
    assert "first-package 1.0 and second-package 1.0" in problem
    path = run_file({'use = "toy-bptt"': 'use = "second-package:mine"'})
    assert compose(path).estimator.entry.distribution == "second-package"


def test_two_providers_of_one_hook_are_refused(run_file, package):
    source = (
        GOOD
        + """
        @hookimpl
        def aggregate(self, group, upstream):
            return upstream

    @attrs.frozen(eq=False)
    class Judge:
        differentiable = True
        needs_text = False
        margin = 1.0
        @hookimpl
        def score(self, images):
            return images.flatten(1).mean(dim=1)
        @hookimpl
        def aggregate(self, group, upstream):
            return upstream
"""
    )
    package("their-package", {"estimator mine": "Mine", "reward judge": "Judge"}, source)
    path = run_file({'use = "toy-bptt"': 'use = "mine"', 'use = "toy-brightness"': 'use = "judge"'})
    problem = one_problem(path)
    assert "the hook 'aggregate' has 2 providers" in problem
    assert "[estimator]" in problem
    assert "[reward.brightness]" in problem


def test_an_estimators_own_aggregate_replaces_cores(run_file, package):
    source = (
        GOOD
        + """
        @hookimpl
        def aggregate(self, group, upstream):
            return upstream[:1] * 0
"""
    )
    package("their-package", {"estimator mine": "Mine"}, source)
    run = compose(run_file({'use = "toy-bptt"': 'use = "mine"'}))
    from headwater.engine import Engine
    from headwater.rollout import RolloutLoop

    hook = run.manager([RolloutLoop(), Engine(run.backbone.plugin)]).hook
    assert [i.plugin_name for i in hook.aggregate.get_hookimpls()] == ["estimator"]
    assert len(hook.backward.get_hookimpls()) == 1


def test_an_unknown_name_lists_what_is_installed(toys):
    with pytest.raises(
        PluginError, match=r"no estimator named 'toy-bttt'; did you mean 'toy-bptt'"
    ):
        headwater.load("estimator", "toy-bttt")


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("algorithm", "toy-last", "no algorithm named 'toy-last'; there is an estimator of that"),
        ("reward", "toy", "no reward named 'toy'; there is a backbone of that name. Installed: "),
        ("estimator", "toy-lost", "no estimator named 'toy-lost'; did you mean 'toy-last'? Inst"),
        ("estimator", "zzzz", "no estimator named 'zzzz'. Installed: "),
        ("estimator", "their:toy-last", "named 'their:toy-last'; toy-plugins offers 'toy-last'. "),
        ("observer", "toy-plugins:toy", "'toy-plugins:toy'; there is a backbone of that name. "),
    ],
)
def test_a_name_that_is_none_gets_the_nearest_hint(toys, kind, name, said):
    with pytest.raises(PluginError) as caught:
        headwater.load(kind, name)
    assert said in str(caught.value)
    assert not re.search(r"[?.;:,][?.;:,]", str(caught.value))


def test_load_checks_settings(toys):
    with pytest.raises(InputError, match=r"dead: expected true or false, got 1"):
        headwater.load("backbone", "toy", {"dead": 1})
    assert headwater.load("backbone", "toy", {"dead": True}).dead is True


def test_an_estimator_and_algorithm_of_different_upstreams_are_matched_before_loading(
    run_file, package
):
    package(
        "their-package",
        {"estimator mine": "Mine"},
        GOOD.replace('upstream = "endpoint"', 'upstream = "per-step"'),
    )
    problem = one_problem(run_file({'use = "toy-bptt"': 'use = "mine"'}))
    assert "'mine' needs a per-step upstream, algorithm 'toy-direct' gives an endpoint" in problem
    assert "toy-bptt" in problem


def test_a_plugin_can_object_to_the_rest_of_the_run(run_file, package):
    source = (
        GOOD
        + """
        def problems(self, run):
            return [f"too few steps: {run.file.rollout.steps}"]
"""
    )
    package("their-package", {"estimator mine": "Mine"}, source)
    problem = one_problem(run_file({'use = "toy-bptt"': 'use = "mine"'}))
    assert problem == "[estimator]: too few steps: 5"


def test_an_estimator_that_cannot_build_at_these_steps_is_found_before_loading(run_file, package):
    source = GOOD.replace(
        "return Surrogate",
        "raise ValueError(f'no {rollout.steps} steps')\n            return Surrogate",
    )
    package("their-package", {"estimator mine": "Mine"}, source)
    assert one_problem(run_file({'use = "toy-bptt"': 'use = "mine"'})) == "[estimator]: no 5 steps"


def test_show_prints_options_with_their_docs(toys):
    result = CliRunner().invoke(main, ["show", "reward", "toy-nan"])
    assert result.exit_code == 0
    assert "kind: one of 'score', 'gradient', default 'score'" in result.output


def test_show_prints_a_table_of_options_as_json():
    result = CliRunner().invoke(main, ["show", "estimator", "surrogate", "--json"])
    assert result.exit_code == 0
    (active,) = (o for o in json.loads(result.output)["options"] if o["name"] == "active")
    assert active["type"] == "a table"
    assert active["default"]["count"] == 3
