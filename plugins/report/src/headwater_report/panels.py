"""Which charts a report has: those of known metrics in order, then all others that vary."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial

import attrs

from headwater_report.charts import Chart, Event, Line
from headwater_report.reading import Record
from headwater_report.series import (
    column,
    evaluation_line,
    profile_line,
    training_line,
)

STEP = "optimizer step"
_WIDE = 30.0
"""A positive metric whose values span more than this factor gets a logarithmic axis."""

_PROFILES = (
    (
        "cotangent_norm/",
        "Gradient by denoising step",
        "denoising step, 0 is noise",
        "‖∂L/∂v‖ over the samples of a step",
        "What goes backward through the network at each denoising step: mean over the optimizer "
        "steps that re-evaluated it, ± its standard error.",
    ),
    (
        "estimator/cosine_group_",
        "Routing cosine by group",
        "group, 0 is noise",
        "cosine to the exact gradient",
        "Of measured groups, the cosine between the routed and the exact gradient: mean over the "
        "measurements.",
    ),
    (
        "estimator/cosine_middle_",
        "Routing cosine by group, middle steps",
        "group, 0 is noise",
        "cosine to the exact gradient",
        "Of measured groups, the cosine of the part that the basis stands for: mean over the "
        "measurements.",
    ),
    (
        "estimator/norm_ratio_group_",
        "Norm ratio by group",
        "group, 0 is noise",
        "routed norm / exact norm",
        "",
    ),
    (
        "estimator/norm_ratio_middle_",
        "Norm ratio by group, middle steps",
        "group, 0 is noise",
        "routed norm / exact norm",
        "",
    ),
)

_KNOWN = {
    "loss": ("Loss", "mean over samples"),
    "algorithm/loss": ("Policy loss", "mean over samples"),
    "grad_norm": ("Gradient norm", "before clipping"),
    "lr": ("Learning rate", "per optimizer step"),
    "seconds": ("Time of a step", "seconds"),
    "algorithm/ratio": ("Ratio", "new / old probability, mean"),
    "algorithm/ratio_deviation": ("Largest |ratio − 1|", "over a step's samples"),
    "algorithm/clipped": ("Clipped", "fraction of terms"),
    "algorithm/kl_x": ("KL to the reference", "in x"),
    "algorithm/kl_x-flow-grpo": ("KL to the reference", "in x, times −dt"),
    "algorithm/kl_v": ("KL to the reference", "in v"),
    "estimator/d_0": ("Residual d₀", "distance to the cached state"),
    "estimator/d_j": ("Residual dⱼ", "distance to the cached state"),
    "samples_dropped": ("Samples dropped", "per step"),
    "groups_skipped": ("Groups skipped", "per step"),
}
_SILENT = {"skipped", "policy_version", "forwards", "backwards"}


_EVALUATED = "The same prompts and noise at every evaluation. Bands and bars: one standard error."
_RUNNING = (
    "Thin: each optimizer step. Bold: centred running mean over a twentieth of the run, with the "
    "standard error of that mean."
)


@attrs.frozen(eq=False)
class Section:
    """Charts that belong together."""

    title: str
    charts: Sequence[Chart]
    note: str = ""


def sections(records: Sequence[Record]) -> list[Section]:
    """All charts of a report; a section without one is left out."""
    taken = set(_SILENT)
    found = [
        Section("Held-out prompts", _evaluations(records), _EVALUATED),
        Section("Training", _training(records, taken), _RUNNING),
        Section("By denoising step and group", _profiles(records, taken)),
        Section("Algorithm", _started(records, "algorithm/", taken)),
        Section("Estimator", _started(records, "estimator/", taken)),
    ]
    rest, constant = _rest(records, taken)
    found = [section for section in found if section.charts]
    return [*found, Section("Other metrics", rest, constant)] if rest or constant else found


def _lines(records: Sequence[Record], make: Callable[[int, Record], Line | None]) -> list[Line]:
    found = [make(run, record) for run, record in enumerate(records)]
    return [line for line in found if line is not None]


def _evaluations(records: Sequence[Record]) -> list[Chart]:
    """Trained and held-out rewards on the evaluation prompts."""
    keys: dict[str, str] = {}
    for record in records:
        several = ["total"] if len(record.trained) > 1 else []
        keys |= {key: "trained" for key in [*record.trained, *several] if key not in keys}
    for record in records:
        keys |= {key: "held out" for key in record.held_out if key not in keys}
    counts = {len(record.prompts) for record in records}
    said = f"mean of {counts.pop() or ''} prompts ± se" if len(counts) == 1 else "mean ± se"
    charts = []
    for key, kind in keys.items():
        for name, title in ((key, f"{key}, {kind}"), (f"change/{key}", f"{key}, change")):
            lines = _lines(records, partial(evaluation_line, name))
            if lines:
                label = said if name == key else "from step 0, paired ± se"
                made = Chart(title, STEP, " ".join(label.split()), lines)
                charts.append(attrs.evolve(made, events=_warnings(records)))
    return charts


def _warnings(records: Sequence[Record]) -> list[Event]:
    return [
        Event(run, float(step), f"{record.label}: warning of reward hacking at step {step}")
        for run, record in enumerate(records)
        for step, row in record.evaluations.items()
        if row.get("hacking/warning", 0.0) > 0
    ]


def _training(records: Sequence[Record], taken: set[str]) -> list[Chart]:
    """Rewards of the training samples, the loss, and the gradient norm with skipped updates."""
    names = [f"reward/{key}" for record in records for key in record.trained]
    names += [f"endpoint_reward/{key}" for record in records for key in record.trained]
    charts = []
    for name in dict.fromkeys([*names, "loss", "algorithm/loss"]):
        start, _, key = name.partition("/")
        if start == "reward":
            made = chart(records, name, f"{key}, training samples", "mean of a step's samples")
        elif start == "endpoint_reward":
            made = chart(records, name, f"{key}, at the endpoint", "mean of a step's samples")
        else:
            made = chart(records, name)
        taken.add(name)
        charts += [made] if made else []
    norm = chart(records, "grad_norm")
    taken.add("grad_norm")
    return [*charts, attrs.evolve(norm, events=_skipped(records))] if norm else charts


def _profiles(records: Sequence[Record], taken: set[str]) -> list[Chart]:
    """What is logged for every denoising step or group, by its number."""
    charts = []
    for start, title, x_label, y_label, caption in _PROFILES:
        taken |= {name for name in _names(records) if name.startswith(start)}
        lines = _lines(records, partial(profile_line, start))
        if lines:
            charts.append(Chart(title, x_label, y_label, lines, caption, log=_wide(lines)))
    return charts


def _skipped(records: Sequence[Record]) -> list[Event]:
    """Where the guard kept an update out; at the foot where its norm is not finite."""
    found = []
    for run, record in enumerate(records):
        for step, row in record.steps.items():
            if row.get("skipped", 0.0) > 0:
                norm = row.get("grad_norm", math.nan)
                norm = norm if math.isfinite(norm) else 0.0
                found.append(Event(run, float(step), f"step {step}: update skipped", norm))
    return found


def _started(records: Sequence[Record], start: str, taken: set[str]) -> list[Chart]:
    """Every metric whose name begins so and that varies."""
    charts = []
    for name in _names(records):
        if name.startswith(start) and name not in taken and not _constant(records, name):
            taken.add(name)
            made = chart(records, name)
            charts += [made] if made else []
    return charts


def _rest(records: Sequence[Record], taken: set[str]) -> tuple[list[Chart], str]:
    """What no other section shows, and a line about what never changes."""
    charts, constant = [], []
    for name in _names(records):
        if name in taken:
            continue
        if _constant(records, name):
            value = next(y for r in records for _, y in column(r.steps, name))
            constant.append(f"{name} = {value:g}")
            continue
        made = chart(records, name)
        charts += [made] if made else []
    said = f"The same in every step: {', '.join(constant)}." if constant else ""
    return charts, said


def _names(records: Sequence[Record]) -> list[str]:
    """Metrics of steps, in their order; a standard error belongs to the metric it is of."""
    names = dict.fromkeys(n for r in records for row in r.steps.values() for n in row)
    return [n for n in names if not (n.endswith("_se") and n.removesuffix("_se") in names)]


def _constant(records: Sequence[Record], name: str) -> bool:
    """One value throughout. In reports of a single step nothing is."""
    values = [y for record in records for _, y in column(record.steps, name)]
    return len(values) > 1 and len(set(values)) == 1


def chart(records: Sequence[Record], name: str, title: str = "", y_label: str = "") -> Chart | None:
    """A metric of every optimizer step; None where no run has a finite value of it."""
    lines = _lines(records, partial(training_line, name))
    if not lines:
        return None
    if not title:
        title, y_label = _KNOWN.get(name, (_plain(name), name))
    return Chart(title, STEP, y_label, lines, log=name != "lr" and _wide(lines))


def _plain(name: str) -> str:
    """`estimator/first_step`: First step."""
    text = re.sub(r"^(estimator|algorithm)/", "", name).replace("_", " ")
    return text[:1].upper() + text[1:]


def _wide(lines: Sequence[Line]) -> bool:
    values = [y for line in lines for _, y in (*line.points, *line.faint) if math.isfinite(y)]
    return bool(values) and min(values) > 0 and max(values) / min(values) > _WIDE
