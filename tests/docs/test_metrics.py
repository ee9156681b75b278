"""What the pages say of metrics is what runs log, in toy runs of two steps."""

import json
import re

import pytest
from docs.site_words import ROOT, expanded
from sitegen import shipped

import headwater
from headwater.testing.runs import write_run_file

pytestmark = pytest.mark.usefixtures("headwater_toys")

POLICY = {
    "prompts": {"per_step": 2, "group": 4, "micro_batch": 8},
    "rollout": {"steps": 9},
    "dynamics": {"use": "dance-sde", "eta": 0.3},
}
TWO = {"brightness": {"use": "toy-brightness"}, "second": {"use": "toy-brightness", "weight": 0.5}}
ESTIMATORS = {
    "leapalign": [{}, {"leaps": 1}, {"leaps": 3}],
    "surrogate": [{}, {"tau": 0.1, "split": "uniform"}],
    "jagg": [{"routed": "auto", "middle": "cached"}, {"basis": "calibrated", "calibrate_every": 1}],
}
ALGORITHMS = {
    "flow-grpo": [
        {"beta": 0.1, "kl": "x"},
        {"beta": 0.1, "kl": "v"},
        {"beta": 0.1, "kl": "x-flow-grpo"},
    ],
}


def logged(tmp_path, tables):
    """Metric names of a run of two steps."""
    tables = {"output": {"trackers": ["jsonl"]}, "evaluation": {"every": 2}, **tables}
    path = write_run_file(tmp_path, {"backbone": {"use": "toy"}, **tables})
    headwater.run(path, out=tmp_path / "out")
    lines = (tmp_path / "out" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return {name for line in lines for name in json.loads(line)} - {"step"}


def pattern(name):
    """A documented name as an expression; capitals stand for what varies."""
    return re.sub(r"[A-Z]+", r"[^/]+", re.escape(name))


def matched(name, documented):
    return any(re.fullmatch(pattern(known), name) for known in documented)


def of_every_run():
    running = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
    table = running.partition("## Metrics\n")[2].partition("\n## ")[0]
    firsts = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return [name for first in firsts for name in re.findall(r"`([^`]+)`", first)]


def own(names, kind):
    return {name.removeprefix(f"{kind}/") for name in names if name.startswith(f"{kind}/")}


def runs_of(kind, name):
    for position, settings in enumerate(
        {"estimator": ESTIMATORS, "algorithm": ALGORITHMS}[kind].get(name, [{}])
    ):
        yield position, {"use": name, **settings}


ALL = [(kind, e.name) for kind in ("estimator", "algorithm") for e in shipped.plugins(kind)]


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_every_metric_that_a_method_logs_is_on_its_page_and_no_other(kind, name, tmp_path):
    cls = shipped.plugin(kind, name)[1]
    declared = getattr(cls, "metrics", {})
    found = set()
    for position, table in runs_of(kind, name):
        per_step = cls.upstream == "per-step"
        tables = {**(POLICY if per_step else {"rollout": {"steps": 9}}), kind: table}
        if kind == "estimator":
            tables |= {"algorithm": {"use": "flow-grpo" if per_step else "toy-direct"}}
        else:
            tables |= {"estimator": {"use": "exact" if per_step else "toy-bptt"}, "reward": TWO}
        names = logged(tmp_path / str(position), tables)
        rest = {n for n in names if not n.startswith((f"{kind}/", "algorithm/"))}
        assert all(matched(n, of_every_run()) for n in rest), rest
        found |= own(names, kind)
    if not shipped.folder(shipped.plugin(kind, name)[0]).startswith("plugins/"):
        told = [n for n in of_every_run() if not n.endswith("/NAME")]
        rest = {n for n in found if not matched(n, declared) and not matched(f"{kind}/{n}", told)}
        assert not declared or not rest  # a guest may declare none
        return
    assert {n for n in found if not matched(n, declared)} == set()
    never = {known for known in declared if not any(matched(n, [known]) for n in found)}
    kl = {"kl_x", "kl_v", "kl_x-flow-grpo"}  # seen once is enough
    assert never <= (set() if name == "flow-grpo" else kl)


def test_the_page_of_a_method_shows_its_metrics_with_their_prefix():
    for kind, name in ALL:
        declared = getattr(shipped.plugin(kind, name)[1], "metrics", {})
        page = ROOT / "docs" / "methods" / f"{name}.md"
        shown = expanded(f"methods/{name}.md" if page.is_file() else "methods/contrib.md")
        for metric in declared:
            assert f"\n| `{metric}` |" in shown
        assert not declared or f"`{kind}/NAME`" in shown
