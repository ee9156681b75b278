"""A comparison as a picture; matplotlib is optional."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headwater.errors import InputError, OutputError

_SUFFIXES = (".png", ".svg", ".pdf")


def check(path: Path) -> None:
    """InputError where the picture could not be written, told before anything is measured."""
    problems = []
    if path.suffix.lower() not in _SUFFIXES:
        problems.append(f"expected a .png, .svg or .pdf file, got {str(path)!r}")
    if not path.absolute().parent.is_dir():
        problems.append(f"no such folder {str(path.absolute().parent)!r}")
    if find_spec("matplotlib") is None:
        problems.append(
            "pictures need matplotlib, which is not installed: pip install 'headwater-lab[plots]'"
        )
    if problems:
        raise InputError("--plot", problems)


def picture(found: dict[str, Any], path: Path) -> None:
    """Four panels: cosine, bias and variance, by step, by block.

    OutputError where the file cannot be written.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(11, 8), layout="constrained")
    _cosines(axes[0][0], found["estimators"])
    _bias_variance(axes[0][1], found["estimators"])
    _by_step(axes[1][0], found)
    _by_block(axes[1][1], found["estimators"])
    figure.suptitle(f"{found['run']}: gradients beside {found['reference']['name']}")
    try:
        figure.savefig(path, dpi=110)
    except OSError as error:
        raise OutputError(f"{path}: the picture cannot be written: {error}") from error
    finally:
        plt.close(figure)


def _cosines(axes: Any, estimators: list[dict[str, Any]]) -> None:
    places = range(len(estimators))
    for key, offset, label in (
        ("cosine", -0.15, "mean of draws"),
        ("cosine_one", 0.15, "one draw"),
    ):
        means = [one[key]["mean"] or 0.0 for one in estimators]
        errors = [one[key]["se"] or 0.0 for one in estimators]
        axes.barh([p + offset for p in places], means, 0.3, xerr=errors, label=label)
    axes.set_yticks(list(places), [one["name"] for one in estimators])
    axes.invert_yaxis()
    axes.set(xlabel="cosine to the reference")
    axes.legend()


def _bias_variance(axes: Any, estimators: list[dict[str, Any]]) -> None:
    for one in estimators:
        bias, variance = one["bias"], one["variance"]
        if bias["mean"] is None or variance["mean"] is None:
            continue
        axes.errorbar(
            variance["mean"],
            bias["mean"],
            bias["se"] or 0.0,
            variance["se"] or 0.0,
            marker="o",
            label=one["name"],
        )
    axes.set(xlabel="variance of one draw, over |g|²", ylabel="bias, over |g|")
    axes.set_xscale("symlog", linthresh=1e-2)
    axes.set_yscale("symlog", linthresh=1e-2)
    axes.legend(fontsize="small")


def _by_step(axes: Any, found: dict[str, Any]) -> None:
    steps = found["reference"]["steps"]
    if not steps:
        axes.set_axis_off()
        return
    largest = max(step["norm"]["mean"] for step in steps) or 1.0
    axes.bar(
        [step["step"] for step in steps],
        [step["norm"]["mean"] / largest for step in steps],
        color="lightgrey",
        label="reference's norm, largest 1",
    )
    for one in found["estimators"]:
        known = [step for step in one["steps"] if step["cosine"]["mean"] is not None]
        means = [step["cosine"]["mean"] for step in known]
        errors = [step["cosine"]["se"] or 0.0 for step in known]
        axes.errorbar([s["step"] for s in known], means, errors, marker=".", label=one["name"])
    axes.set(xlabel="step, from noise to image", ylabel="cosine of an active step's part")
    axes.legend(fontsize="small")


def _by_block(axes: Any, estimators: list[dict[str, Any]]) -> None:
    names = [block["block"] for block in estimators[0]["blocks"]]
    for one in estimators:
        means = [block["cosine"]["mean"] for block in one["blocks"]]
        axes.plot(means, range(len(names)), marker="o", label=one["name"])
    axes.set_yticks(range(len(names)), names, fontsize="small")
    axes.invert_yaxis()
    axes.set(xlabel="cosine by block")
    axes.legend(fontsize="small")
