"""What bench/lab.py measured, as tables in Markdown and as the pictures of docs/lab.md."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from common import table_text
from lab_pairs import PAIRS, PLACED

Found = dict[str, Any]
SHORT = {"surrogate{weights='hat'": "surrogate (hat)"}


def tables(found: dict[str, Found]) -> str:
    """Every block, and the numbers that the claims rest on."""
    parts = []
    for block, one in found.items():
        parts.append(f"### {block}\n\n{_block(one)}")
    if "estimators" in found:
        parts.append(f"### reference by step\n\n{_reference(found['estimators'])}")
        parts.append(f"### cosine by step\n\n{_by_step(found['estimators'])}")
    parts += [f"### {title}\n\n{text}" for title, text in _claims(found)]
    return "\n".join(parts)


def name_of(row: Found) -> str:
    """The label, shortened where it is long."""
    for start, short in SHORT.items():
        if row["name"].startswith(start):
            return short
    return str(row["name"])


def cell(value: Found | None, digits: int = 3) -> str:
    """Mean and standard error."""
    if value is None or value["mean"] is None:
        return "-"
    se = "" if value["se"] is None else f" ± {value['se']:.{digits}f}"
    return f"{value['mean']:.{digits}f}{se}"


def _block(one: Found) -> str:
    head = ["estimator", "cosine", "one draw", "norm ratio", "bias", "variance", "noise"]
    head += ["d_j", "d_0", "forwards / backwards", "time", "peak MB"]
    whole = one["reference"]["seconds"]["mean"]
    rows = []
    for row in one["estimators"]:
        cells = [cell(row[key]) for key in ("cosine", "cosine_one", "norm_ratio", "bias")]
        cells += [cell(row[key], 2) for key in ("variance", "noise")]
        cells += [cell(row["diagnostics"].get(key)) for key in ("d_j", "d_0")]
        cells.append(f"{row['forwards']['mean']:.0f} / {row['backwards']['mean']:.0f}")
        cells += [f"{row['seconds']['mean'] / whole:.2f}", f"{row['peak_memory_bytes'] / 1e6:.1f}"]
        rows.append([f"`{name_of(row)}`", *cells])
    text = table_text(head, rows)
    groups = [
        [
            f"`{name_of(row)}`",
            *(f"{cell(g['cosine'])} ({g['norm_ratio']['mean']:.2f})" for g in row["groups"]),
        ]
        for row in one["estimators"]
        if row["groups"]
    ]
    if groups:
        width = max(len(row) for row in groups)
        groups = [row + [""] * (width - len(row)) for row in groups]
        head = ["cosine (norm ratio) by group", *(f"group {i}" for i in range(width - 1))]
        text += "\n" + table_text(head, groups)
    return text


def _reference(one: Found) -> str:
    steps = one["reference"]["steps"]
    head = ["step", *(str(step["step"]) for step in steps)]
    rows = [
        [title, *(f"{step[key]['mean']:.2f}" for step in steps)]
        for title, key in (("part", "norm"), ("dL/dx", "state_gradient"))
    ]
    return table_text(head, rows)


def _by_step(one: Found) -> str:
    count = len(one["reference"]["steps"])
    rows = []
    for row in one["estimators"]:
        known = {step["step"]: step["cosine"]["mean"] for step in row["steps"]}
        if known:
            cells = ["" if known.get(i) is None else f"{known[i]:.2f}" for i in range(count)]
            rows.append([f"`{name_of(row)}`", *cells])
    return table_text(["step", *map(str, range(count))], rows)


def by_rollout(row: Found, value: Callable[[Found], float | None]) -> dict[int, float]:
    """Mean over draws of something, for every rollout."""
    out: dict[int, list[float]] = {}
    for each in row["each"]:
        number = value(each)
        if number is not None:
            out.setdefault(each["rollout"], []).append(number)
    return {rollout: statistics.mean(values) for rollout, values in out.items()}


def paired(row: Found, base: Found, key: str = "cosine") -> str:
    """Difference of one draw's numbers on the same rollouts, with its standard error."""
    left, right = (by_rollout(one, lambda each: each[key]) for one in (row, base))
    return mean_se([left[r] - right[r] for r in sorted(left.keys() & right.keys())], signed=True)


def mean_se(values: Sequence[float], *, signed: bool = False) -> str:
    """Text of a mean and its standard error."""
    mean = statistics.mean(values)
    se = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{mean:+.3f} ± {se:.3f}" if signed else f"{mean:.3f} ± {se:.3f}"


def _rows(found: dict[str, Found]) -> dict[str, Found]:
    """Every estimator with an endpoint upstream, by name."""
    blocks = [one for one in found.values() if one["reference"]["name"] == "bptt"]
    return {name_of(row): row for one in blocks for row in one["estimators"]}


def _claims(found: dict[str, Found]) -> list[tuple[str, str]]:
    known = _rows(found)
    head = ["estimator", "beside", "difference of one draw's cosine", "of its norm ratio"]
    out = [("paired differences", table_text(head, _differences(known, PAIRS)))]
    for block, one in found.items():
        rows = _differences({row["name"]: row for row in one["estimators"]}, PLACED)
        if rows and block.startswith("placed"):
            out.append((f"paired differences, {block}", table_text(head, rows)))
    lengths = [
        [f"`{name}`", connector, *binned(known[name], connector)]
        for name in ("leapalign", "flowbp-lagrange{order=1}", "flowbp-lagrange{order=3}")
        for connector in ("d_j", "d_0")
        if name in known
    ]
    if lengths:
        head = ["estimator", "residual", *(f"leap of {a} to {b} steps" for a, b in BINS)]
        out.append(("residual by the leap's length", table_text(head, lengths)))
    return out


def _differences(known: dict[str, Found], pairs: Sequence[tuple[str, str]]) -> list[list[str]]:
    return [
        [f"`{a}`", f"`{b}`", paired(known[a], known[b]), paired(known[a], known[b], "norm_ratio")]
        for a, b in pairs
        if a in known and b in known
    ]


BINS = ((1, 4), (5, 9), (10, 20))


def leap_of(each: Found, connector: str, steps: int) -> int | None:
    """Steps of the leap that a residual is of."""
    told = each["diagnostics"]
    last = told.get("last_leap", told.get("last_segment"))
    if last is None or connector not in told:
        return None
    return round(last if connector == "d_0" else steps - last - told["first_step"])


def residuals(row: Found, connector: str, steps: int = 20) -> list[tuple[int, float]]:
    """(leap, residual) of every draw."""
    pairs = [(leap_of(e, connector, steps), e["diagnostics"].get(connector)) for e in row["each"]]
    return [(leap, value) for leap, value in pairs if leap is not None and value is not None]


def binned(row: Found, connector: str) -> list[str]:
    """Mean residual of short, middle and long leaps, standard error over draws."""
    out = []
    for low, high in BINS:
        own = [value for leap, value in residuals(row, connector) if low <= leap <= high]
        out.append(f"{mean_se(own)} ({len(own)})" if len(own) > 1 else f"- ({len(own)})")
    return out


def pictures(found: dict[str, Found], folder: Path) -> None:
    """docs/lab-*.png."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    for name, draw in (
        ("steps", _draw_steps),
        ("estimators", _draw_estimators),
        ("residual", _draw_residuals),
        ("jagg", _draw_jagg),
    ):
        figure = draw(plt, found)
        figure.savefig(folder / f"lab-{name}.png", dpi=80)
        plt.close(figure)


def _draw_steps(plt: Any, found: dict[str, Found]) -> Any:
    one = found["estimators"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    steps = one["reference"]["steps"]
    places = [step["step"] for step in steps]
    for key, label in (("norm", "gradient of the weights"), ("state_gradient", "dL/dx after it")):
        means = [step[key]["mean"] for step in steps]
        errors = [step[key]["se"] for step in steps]
        left.errorbar(places, means, errors, marker=".", capsize=2, label=label)
    left.set(yscale="log", xlabel="step, from noise to image", title="full backpropagation")
    left.legend()
    for panel in (left, right):
        panel.set_xticks(range(0, len(steps), 3))
    for row in one["estimators"]:
        if row["steps"] and row["name"] not in ("bptt", "draft-k"):
            known = [step for step in row["steps"] if step["cosine"]["mean"] is not None]
            means = [step["cosine"]["mean"] for step in known]
            right.plot([s["step"] for s in known], means, marker=".", label=name_of(row))
    right.set(xlabel="step", title="cosine of an active step's part to the exact part")
    right.legend(fontsize="x-small")
    return figure


def _draw_estimators(plt: Any, found: dict[str, Found]) -> Any:
    known = _rows(found)
    names = [n for n in known if "{" not in n or n == "draft-k{k=5}"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for place, name in enumerate(names):
        value = known[name]["cosine_one"]
        left.errorbar(
            value["mean"], place, xerr=value["se"], marker="o", capsize=3, color=f"C{place}"
        )
        bias, noise = known[name]["cosine_expected"]["mean"], known[name]["noise"]["mean"]
        if name != "bptt":
            right.plot(noise, bias, "o", color=f"C{place}", label=name)
    left.set_yticks(range(len(names)), names)
    left.invert_yaxis()
    left.set(title="cosine of one draw to full backpropagation")
    right.set(xlabel="noise of one draw, over the expected gradient", ylabel="its cosine")
    right.set(title="the expected gradient's cosine, and the noise")
    right.legend(fontsize="x-small", ncols=2)
    return figure


def _draw_residuals(plt: Any, found: dict[str, Found]) -> Any:
    known = _rows(found)
    figure, axes = plt.subplots(figsize=(6, 3.8), layout="constrained")
    for name, marker in (
        ("leapalign", "o"),
        ("flowbp-lagrange{order=1}", "s"),
        ("flowbp-lagrange{order=2}", "v"),
        ("flowbp-lagrange{order=3}", "^"),
    ):
        if name not in known:
            continue
        pairs = residuals(known[name], "d_j")
        lengths = sorted({leap for leap, _ in pairs})
        means = [statistics.mean(v for leap, v in pairs if leap == one) for one in lengths]
        axes.plot(lengths, means, marker=marker, label=name)
    axes.set(yscale="log", xlabel="steps of the leap from k to j", ylabel="residual d_j")
    axes.legend(fontsize="small")
    return figure


def _draw_jagg(plt: Any, found: dict[str, Found]) -> Any:
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained", sharey=True)
    for panel, block in zip(axes, ("dance-sde", "flow-sde"), strict=True):
        for row in found.get(block, {"estimators": []})["estimators"]:
            groups = row["groups"]
            if len(groups) > 1 and row["name"] != "jagg":  # its routed groups are the same
                names = [f"{g['steps'][0]}-{g['steps'][-1]}" for g in groups]
                means = [g["cosine"]["mean"] for g in groups]
                errors = [g["cosine"]["se"] or 0 for g in groups]
                panel.errorbar(names, means, errors, marker="o", capsize=3, label=name_of(row))
        panel.set(title=block, xlabel="steps of the group")
    axes[0].set_ylabel("cosine to the exact gradient of the group")
    axes[0].legend(fontsize="x-small")
    return figure
