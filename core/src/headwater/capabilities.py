"""Do the plugins of a run fit each other? Told from what they declare, before any weight loads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headwater.discovery import import_class
from headwater.errors import PluginError
from headwater.installed import entries

if TYPE_CHECKING:
    from headwater.tables import RunFile

_GIVES = {"endpoint": "an endpoint gradient", "per-step": "a per-step upstream"}

_REQUIRED: dict[str, dict[str, tuple[Any, ...]]] = {
    "backbone": {"guidance_kind": ("none", "embedded", "classifier-free")},
    "dynamics": {"stochastic": (True, False)},
    "algorithm": {"upstream": (*_GIVES,), "needs_stochastic_steps": (True, False)},
    "estimator": {
        "upstream": (*_GIVES,),
        "endpoint": ("sample", "posterior-mean", "sample-and-renoised", "none"),
    },
    "reward": {"differentiable": (True, False), "needs_text": (True, False), "margin": ()},
}
"""What each kind declares, and the values it may have; a margin is a number or None."""

_METHODS: dict[str, tuple[str, ...]] = {
    "backbone": (
        *("network_evaluations", "encode", "velocity", "decode", "shape", "sigmas", "noise"),
        "trainable",
    ),
    "algorithm": ("stochastic_steps", "trained_steps", "credit"),
}
"""Methods that every run calls."""


def undeclared(kind: str, plugin: Any) -> list[str]:
    """Capabilities and methods that a plugin of this kind must have and does not."""
    names = (*_REQUIRED.get(kind, ()), *_METHODS.get(kind, ()))
    return [name for name in names if not hasattr(plugin, name)]


def misdeclared(kind: str, plugin: Any) -> list[str]:
    """Declared capabilities whose value is none of those there are, each in one sentence.

    plugin: an instance; or its class, of which only what is fixed there is judged.
    """
    out = []
    for name, allowed in _REQUIRED.get(kind, {}).items():
        value = getattr(plugin, name, None)
        if isinstance(plugin, type) and (value is None or hasattr(type(value), "__get__")):
            continue
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        known = any(type(value) is type(one) and value == one for one in allowed)
        if not (known if allowed else value is None or number):
            words = "one of " + ", ".join(map(repr, allowed)) if allowed else "a number or None"
            out.append(f"declares {name} = {value!r}; expected {words}")
    return out


def mismatches(
    file: RunFile,
    made: Mapping[str, Any],
    rewards: Mapping[str, Any],
    held_out: Mapping[str, Any],
) -> list[str]:
    """Every pair of plugins that cannot work together, each in one sentence."""
    every = [*made.items(), *(("reward", n) for n in (*rewards.values(), *held_out.values()))]
    missing = [
        f"[{named.key}]: {named.entry.title} does not declare {', '.join(names)}"
        for kind, named in every
        if (names := undeclared(kind, named.plugin))
    ]
    wrong = missing or [
        f"[{named.key}]: {named.entry.title} {text}"
        for kind, named in every
        for text in misdeclared(kind, named.plugin)
    ]
    if wrong:
        return wrong
    algorithm, estimator = made["algorithm"], made["estimator"]
    problems = _upstream(algorithm, estimator)
    if algorithm.plugin.upstream == "endpoint":
        problems += [
            _not_differentiable(algorithm, n)
            for n in rewards.values()
            if not n.plugin.differentiable
        ]
        problems += _one_update(file)
    if algorithm.plugin.needs_stochastic_steps and not made["dynamics"].plugin.stochastic:
        problems.append(
            f"[dynamics]: algorithm {algorithm.entry.name!r} needs stochastic steps, "
            f"dynamics {made['dynamics'].entry.name!r} takes none"
        )
    if made["dynamics"].plugin.stochastic and not algorithm.plugin.needs_stochastic_steps:
        problems.append(
            f"[dynamics]: algorithm {algorithm.entry.name!r} takes Euler steps only, so dynamics "
            f"{made['dynamics'].entry.name!r} would never be used; leave the table out"
        )
    dtype = getattr(made["backbone"].plugin, "dtype", "")
    if file.engine.precision == "bfloat16" and dtype == "float64":
        problems.append(
            '[engine] precision: "bfloat16" is mixed precision over float32 weights, and '
            '[backbone] dtype is "float64", which autocast leaves alone'
        )
    guidance = file.rollout.guidance
    if made["backbone"].plugin.guidance_kind == "none" and guidance not in (0.0, 1.0):
        problems.append(
            f"[rollout] guidance: backbone {made['backbone'].entry.name!r} takes no guidance; "
            f"expected 1, got {guidance}"
        )
    return problems


def _upstream(algorithm: Any, estimator: Any) -> list[str]:
    need, given = estimator.plugin.upstream, algorithm.plugin.upstream
    if need == given:
        return []
    return [
        f"[estimator]: {estimator.entry.name!r} needs {_GIVES[need]}, algorithm "
        f"{algorithm.entry.name!r} gives {_GIVES[given]}; works with {estimator.entry.name}: "
        f"{_with_upstream('algorithm', need)}; works with {algorithm.entry.name}: "
        f"{_with_upstream('estimator', given)}"
    ]


def _with_upstream(kind: str, upstream: str) -> str:
    """Names of the installed plugins of a kind with this upstream; broken ones are left out."""
    names = []
    for entry in entries(kind):
        try:
            if getattr(import_class(entry), "upstream", None) == upstream:
                names.append(entry.name)
        except PluginError:
            continue  # it is a row in `headwater plugins`, and nobody named it here
    return ", ".join(names) or "none installed"


def _not_differentiable(algorithm: Any, reward: Any) -> str:
    return (
        f"[{reward.key}]: reward {reward.entry.name!r} is not differentiable, algorithm "
        f"{algorithm.entry.name!r} needs its gradient; it can be a held-out reward under "
        f"[evaluation.reward.KEY]"
    )


def _one_update(file: RunFile) -> list[str]:
    return [
        f"[algorithm] {key}: an endpoint upstream takes only {key} = 1, got {value}; its cached "
        f"sample is the policy's own only before the first update"
        for key in ("updates", "epochs")
        if (value := file.algorithm.core[key]) != 1
    ]
