"""Faults of plugins: who raised, and whether what a plugin gives is what was asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pluggy
import torch
from torch import Tensor

from headwater.errors import BLAME, HeadwaterError
from headwater.protocols import Transition
from headwater.types import Batch, Credit, Request, Rollout, Surrogate

if TYPE_CHECKING:
    from headwater.composition import Named, Run


class blamed:
    """Add to any exception which plugin raised it; it is unchanged but for an exit."""

    def __init__(self, named: Named, call: str) -> None:
        self.who, self.call = _who(named), call
        self.note = f"{BLAME}{call} of [{named.key}], {named.entry.title}"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, SystemExit):
            raise HeadwaterError(f"{self.who} called for an exit in {self.call}") from error
        if error is not None:
            _note(error, self.note)


def _who(named: Named) -> str:
    return f"[{named.key}] ({named.entry.title})"


def _note(error: BaseException, note: str) -> None:
    """The first to tell is nearest to the fault."""
    if not any(known.startswith(BLAME) for known in getattr(error, "__notes__", [])):
        error.add_note(note)


def note_failures(manager: pluggy.PluginManager, run: Run) -> None:
    """An exception that leaves a hook, or a result that is none, says whose it is."""
    by_key = {named.key: named for named in run.named}
    upstream = run.estimator.plugin.upstream
    judge: _Judge = partial(_surrogate_fault, upstream=upstream)
    results = {**_RESULTS, "build_surrogate": judge}

    def before(_: str, __: Any, ___: Any) -> None:
        return None

    def after(outcome: pluggy.Result[Any], hook: str, impls: Any, given: Any) -> None:
        owners = [by_key[i.plugin_name] for i in impls if i.plugin_name in by_key]
        if len(owners) != 1:
            return
        who, error = _who(owners[0]), outcome.exception
        if isinstance(error, SystemExit):
            outcome.force_exception(HeadwaterError(f"{who} called for an exit in hook {hook!r}"))
        elif error is not None:
            _note(error, f"{BLAME}hook {hook} of [{owners[0].key}], {owners[0].entry.title}")
        elif hook in results and (fault := results[hook](outcome.get_result(), given)):
            outcome.force_exception(HeadwaterError(f"{who}: hook {hook!r}: {fault}"))

    manager.add_hookcall_monitoring(before, after)


def tensor_fault(
    value: Any,
    shape: tuple[int, ...],
    device: torch.device | None = None,
    what: str = "a tensor",
) -> str:
    """Why a value is no floating tensor of a shape, or an empty text."""
    if not isinstance(value, Tensor) or tuple(value.shape) != shape:
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        return f"expected {what} of shape {shape}, got {got}"
    if not value.is_floating_point():
        return f"expected {what} of floating numbers, got {value.dtype}"
    if device is not None and value.device != device:
        return f"expected {what} on {device}, got {value.device}"
    return ""


def _rollout_fault(value: Any, given: Mapping[str, Any]) -> str:
    """A rollout of the batch that was asked for."""
    batch = given.get("batch")
    if not isinstance(value, Rollout):
        return f"expected a Rollout, got {type(value).__name__}"
    if batch is None:
        return ""
    lead = (batch.steps + 1, len(batch))
    if tuple(value.latents.shape[:2]) != lead:
        return f"expected latents of shape {lead} and a latent's, got {tuple(value.latents.shape)}"
    if value.velocities is not None:
        latent = tuple(value.latents.shape[2:])
        return tensor_fault(value.velocities, (batch.steps, len(batch), *latent))
    return ""


def _surrogate_fault(value: Any, given: Mapping[str, Any], upstream: str) -> str:
    """Groups of steps that the rollout has, and one weight a sample."""
    if not isinstance(value, Surrogate):
        return f"expected a Surrogate, got {type(value).__name__}"
    steps, size = value.rollout.steps, len(value.rollout.batch)
    outside = sorted({i for g in value.groups for i in g.steps if not 0 <= i < steps})
    if outside:
        return f"steps {outside} are not among the {steps} of the rollout"
    if any(not torch.isfinite(group.basis).all() for group in value.groups):
        return "a basis is not finite"
    if (value.endpoint is None) != (upstream == "per-step"):
        what = "no endpoint" if value.endpoint is None else "an endpoint"
        return f"{what} for the upstream {upstream!r} that the estimator declares"
    if value.endpoint is not None:
        fault = tensor_fault(value.endpoint, tuple(value.rollout.state(0).shape))
        if fault:
            return f"endpoint: {fault}"
    weights = value.sample_weights
    fault = "" if weights is None else tensor_fault(weights, (size,))
    return f"sample weights: {fault}" if fault else ""


def _like_states(count: Callable[[Any], int]) -> Callable[[Any, Mapping[str, Any]], str]:
    """One state's shape for each of `count` steps of the group."""

    def fault(value: Any, given: Mapping[str, Any]) -> str:
        group, rollout = given["group"], given.get("rollout")
        state = given["upstream"][0] if rollout is None else rollout.state(0)
        return tensor_fault(value, (count(group), *state.shape), state.device)

    return fault


def _carried_fault(value: Any, given: Mapping[str, Any]) -> str:
    """None for a per-step upstream, else the gradient at the start of the group."""
    carried = given["carried"]
    if carried is None:
        return "" if value is None else "expected None for a per-step upstream"
    return tensor_fault(value, tuple(carried.shape), carried.device)


_Judge = Callable[[Any, Mapping[str, Any]], str]
_RESULTS: dict[str, _Judge] = {
    "sample_rollout": _rollout_fault,
    "compute_upstream": _like_states(lambda group: len(group.steps)),
    "aggregate": _like_states(lambda group: len(group.active)),
    "backward": _carried_fault,
}
"""Hook: what is wrong with the result of a plugin's own, or an empty text."""


def sigmas_fault(sigmas: Any, steps: int) -> str:
    """Why a sigma grid is none of `steps` steps, or an empty text."""
    fault = tensor_fault(sigmas, (steps + 1,))
    if fault:
        return fault
    falling = bool((sigmas[1:] < sigmas[:-1]).all()) and float(sigmas[-1]) == 0
    return "" if falling else f"expected sigmas that fall to 0, got {sigmas.tolist()[:8]}"


def network_evaluations(named: Named, guidance: float) -> tuple[int, int]:
    """What a backbone says that one velocity takes."""
    with blamed(named, "network_evaluations"):
        found = named.plugin.network_evaluations(guidance)
    whole = isinstance(found, tuple) and [type(n) for n in found] == [int, int]
    if not whole or min(found) < 1:
        raise HeadwaterError(
            f"{_who(named)}: network_evaluations: expected two whole numbers from 1, got {found!r}"
        )
    forwards, backwards = found
    return forwards, backwards


def latent_shape(named: Named, request: Request) -> tuple[int, ...]:
    """What a backbone says is the shape of a latent."""
    with blamed(named, "shape"):
        found = named.plugin.shape(request)
    if not isinstance(found, tuple) or not all(type(n) is int and n > 0 for n in found):
        raise HeadwaterError(f"{_who(named)}: expected the shape of a latent, got {found!r}")
    return found


class CheckedDynamics:
    """The dynamics of a run, as its rollouts have them: whose fault a step is, is told."""

    def __init__(self, named: Named) -> None:
        self.named = named

    def transition(self, x: Tensor, v: Tensor, i: int, sigmas: Tensor) -> Transition:
        """As the plugin's; a mean like `x`, and a finite standard deviation."""
        with blamed(self.named, "transition"):
            found = self.named.plugin.transition(x, v, i, sigmas)
        if not isinstance(found, Transition):
            fault = f"expected a Transition, got {type(found).__name__}"
        elif not isinstance(found.std, (int, float)) or not 0 <= found.std < math.inf:
            fault = f"expected a standard deviation from 0, one number, got {found.std}"
        else:
            fault = tensor_fault(found.mean, tuple(x.shape), x.device, "a mean")
        if fault:
            raise HeadwaterError(f"{_who(self.named)}: transition: {fault}")
        return found

    def log_prob(self, next: Tensor, transition: Transition) -> Tensor:
        """As the plugin's; (B,)."""
        with blamed(self.named, "log_prob"):
            found: Tensor = self.named.plugin.log_prob(next, transition)
        if fault := tensor_fault(found, (len(next),), next.device, "log-probabilities"):
            raise HeadwaterError(f"{_who(self.named)}: log_prob: {fault}")
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.named.plugin, name)


def check_credit(credit: Any, named: Named, endpoint: Tensor | None, size: int) -> None:
    """A gradient at the endpoint; without one, advantages (B,) and perhaps a mask."""
    if not isinstance(credit, Credit):
        fault = f"expected a Credit, got {type(credit).__name__}"
    elif endpoint is not None:
        shape, what = tuple(endpoint.shape), "a gradient at the endpoint"
        fault = tensor_fault(credit.endpoint_gradient, shape, endpoint.device, what)
    else:
        fault = tensor_fault(credit.advantages, (size,), None, "advantages")
        if not fault and credit.kept is not None and tuple(credit.kept.shape) != (size,):
            fault = f"expected a mask of shape {(size,)}, got {tuple(credit.kept.shape)}"
    if fault:
        raise HeadwaterError(f"{_who(named)}: credit: {fault}")


def check_images(images: Tensor, named: Named) -> None:
    """Decoded images lie in [0, 1], but for rounding; what is not finite is told of its scores."""
    low, high = (float(end) for end in images.detach().aminmax())
    if low < -0.01 or high > 1.01:
        raise HeadwaterError(
            f"{_who(named)}: decode: expected images in [0, 1], got {low:.4g} to {high:.4g}"
        )


def version_of(images: Tensor) -> int:
    """Counts the changes of the images' data; 0 under `torch.inference_mode`, which counts none."""
    return 0 if images.is_inference() else images._version


def check_scores(scores: Any, named: Named, images: Tensor, version: int) -> None:
    """Scores are a floating (B,) tensor beside the images, with a gradient where one is due.

    version: `version_of` the images before they were judged.
    """
    who = _who(named)
    if version_of(images) != version:
        raise HeadwaterError(f"{who}: score changes the images, which others judge too")
    fault = tensor_fault(scores, (len(images),), images.device, "scores")
    if fault:
        raise HeadwaterError(f"{who}: {fault}")
    if images.requires_grad and not scores.requires_grad:
        raise HeadwaterError(
            f"{who} declares itself differentiable but its scores have no gradient"
        )


def nonfinite(values: Mapping[str, Tensor], batch: Batch) -> str:
    """What to say of scores that are not finite."""
    for key, value in values.items():
        value = value.detach()
        bad = (~torch.isfinite(value)).nonzero().flatten().tolist()
        if bad:
            return (
                f"reward {key!r} is {float(value[bad[0]])} for {len(bad)} of {len(value)} samples, "
                f"first for the prompt {batch.prompts[bad[0]].text!r}; "
                f'[guard] nonfinite_reward = "drop-group" would drop them'
            )
    raise AssertionError("no score is non-finite")
