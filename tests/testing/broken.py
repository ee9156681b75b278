"""Plugins with one fault each. The source of a distribution that only these tests install."""

import random
from pathlib import Path
from typing import Any, ClassVar

import attrs
import torch

from headwater import hookimpl
from headwater.protocols import Transition
from headwater.testing.objectives import EachStep, EveryStep, LastStep, ToyDirect, ToyPolicy
from headwater.testing.plugins import Brightness, Recorder, ToyBackbone, ToyNoise
from headwater.types import Group, Surrogate

frozen = attrs.frozen(eq=False)


def image(rollout):
    return rollout.state(rollout.steps)


def single(i, coupling=0.0):
    return Group((i,), (i,), torch.ones(1, 1), coupling)


def at(rollout, i):
    return Surrogate((single(i),), image(rollout), None, rollout)


@frozen
class GroupsReversed(EveryStep):
    """Groups from the image to the noise."""

    @hookimpl
    def build_surrogate(self, rollout):
        groups = tuple(single(i, 1.0) for i in reversed(range(rollout.steps)))
        return Surrogate(groups, image(rollout), None, rollout)


@frozen
class BeyondTheEnd(LastStep):
    """Step N."""

    @hookimpl
    def build_surrogate(self, rollout):
        return at(rollout, rollout.steps)


@frozen
class CoupledTooMuch(EveryStep):
    """A coupling of 1.5."""

    @hookimpl
    def build_surrogate(self, rollout):
        return Surrogate((single(0, 1.5),), image(rollout), None, rollout)


@frozen
class CrashesOnShortOnes(LastStep):
    """An IndexError where a rollout is short."""

    @hookimpl
    def build_surrogate(self, rollout):
        return at(rollout, [*range(rollout.steps)][4])


@frozen
class NoPosteriorMean(LastStep):
    """Declares a posterior mean and gives the sample."""

    endpoint: ClassVar[str] = "posterior-mean"

    @hookimpl
    def build_surrogate(self, rollout):
        return Surrogate((single(0),), rollout.state(2), None, rollout)


@frozen
class GlobalDraw(LastStep):
    """Draws from torch's global generator."""

    @hookimpl
    def build_surrogate(self, rollout):
        return at(rollout, int(torch.randint(rollout.steps, ())))


@frozen
class DrawForNothing(LastStep):
    """Draws from its generator and does not use what it drew."""

    @hookimpl
    def build_surrogate(self, rollout, generator):
        torch.randint(rollout.steps, (), generator=generator)
        return at(rollout, 0)


@frozen
class StepsByBatch(LastStep):
    """Its step is the size of the micro-batch."""

    @hookimpl
    def build_surrogate(self, rollout):
        return at(rollout, len(rollout.batch))


@frozen
class InPlace(LastStep):
    """Changes the cached states."""

    @hookimpl
    def build_surrogate(self, rollout):
        rollout.latents.mul_(1.001)
        return at(rollout, 0)


@frozen
class SaysExact(LastStep):
    """DRaFT-1, declared exact."""

    exact: ClassVar[bool] = True


@frozen
class SaysExactPerStep(EachStep):
    """Every other trained step, declared exact."""

    @hookimpl
    def build_surrogate(self, rollout):
        groups = tuple(single(i) for i in rollout.batch.trained_steps[::2])
        return Surrogate(groups, None, None, rollout)


@frozen
class WeightsOfTheBatch(LastStep):
    """Weights over their mean in the micro-batch."""

    @hookimpl
    def build_surrogate(self, rollout):
        sizes = image(rollout).flatten(1).norm(dim=1)
        found = at(rollout, rollout.steps - 1)
        return attrs.evolve(found, sample_weights=sizes / sizes.mean())


@frozen
class HiddenForward(LastStep):
    """Evaluates a velocity that nothing counts."""

    _seen: Any = attrs.field(init=False, factory=list)

    @hookimpl
    def build_surrogate(self, backbone, rollout):
        self._seen[:] = backbone, rollout
        return at(rollout, 0)

    @hookimpl
    def aggregate(self, group, upstream):
        backbone, rollout = self._seen
        sigma = rollout.sigmas[0].expand(len(rollout.batch))
        backbone.velocity(rollout.state(0), sigma, rollout.batch.conditioning)
        return torch.tensordot(group.basis.to(upstream), upstream, dims=1)


@frozen
class HalfEndpoint(LastStep):
    """Hands on the stored states as they are."""

    @hookimpl
    def build_surrogate(self, rollout):
        return Surrogate((single(0),), rollout.latents[-1], None, rollout)


@frozen
class Forgetful(LastStep):
    """Trains another step at every call, and has no state."""

    _calls: Any = attrs.field(init=False, factory=list)

    @hookimpl
    def build_surrogate(self, rollout):
        self._calls.append(1)
        return at(rollout, len(self._calls) % rollout.steps)


@frozen
class BatchNormalised(Brightness):
    """Less the batch's mean."""

    @hookimpl
    def score(self, images):
        found = images.flatten(1).mean(dim=1)
        return found - found.mean()


@frozen
class ByPosition(Brightness):
    """The first image of a batch is worth more."""

    @hookimpl
    def score(self, images):
        return images.flatten(1).mean(dim=1) + torch.arange(len(images), 0, -1)


@frozen
class ChangesImages(Brightness):
    """Works in place."""

    @hookimpl
    def score(self, images):
        with torch.no_grad():
            images.mul_(0.5)
        return images.flatten(1).mean(dim=1)


@frozen
class HalfTheGraph(Brightness):
    """A square of which one factor is cut off."""

    @hookimpl
    def score(self, images):
        mean = images.flatten(1).mean(dim=1)
        return mean * mean.detach()


@frozen
class ZeroGradient(Brightness):
    """Counts bright pixels and says it is differentiable."""

    @hookimpl
    def score(self, images):
        return (images > 0.5).double().flatten(1).mean(dim=1) + 0 * images.flatten(1).sum(dim=1)


@frozen
class SecretText(Brightness):
    """Reads the prompt, and says it does not."""

    @hookimpl
    def score(self, images, batch):
        sizes = torch.tensor([float(len(p.text)) for p in batch.prompts])
        return images.flatten(1).mean(dim=1) + sizes


@frozen
class WrongShape(Brightness):
    """(B, 1)."""

    @hookimpl
    def score(self, images):
        return images.flatten(1).mean(dim=1, keepdim=True)


_KEPT = []


@attrs.define(eq=False)
class LeaksWeights(Brightness):
    """Keeps every network it loaded in its module."""

    def load(self, context):
        _KEPT.append(torch.zeros(2**20))


@frozen
class WrongSign(ToyPolicy):
    """Climbs down."""

    @hookimpl
    def compute_upstream(self, group, rollout, credit, velocities):
        return -ToyPolicy.compute_upstream(self, group, rollout, credit, velocities)


@frozen
class NoMean(ToyPolicy):
    """Is not divided by n."""

    @hookimpl
    def compute_upstream(self, group, rollout, credit, velocities):
        return credit.count * ToyPolicy.compute_upstream(self, group, rollout, credit, velocities)


@frozen
class TrainsTheLast(ToyPolicy):
    """Trains a step that is not stochastic."""

    def trained_steps(self, step, N, generator):
        return (N - 1,)


@frozen
class OwnSteps(ToyPolicy):
    """Each process draws its own steps."""

    def trained_steps(self, step, N, generator):
        return (int(torch.randint(N - 1, ())),)


@frozen
class NeighboursAsGroups(ToyPolicy):
    """Takes neighbours for samples of one prompt."""

    def credit(self, scores, groups):
        return ToyPolicy.credit(self, scores, [i // 3 for i in range(len(groups))])


@frozen
class HalfGradient(ToyDirect):
    """Half of the derivative of its loss."""

    def credit(self, scores, surrogate):
        found = ToyDirect.credit(self, scores, surrogate)
        return attrs.evolve(found, endpoint_gradient=found.endpoint_gradient / 2)


@frozen
class SumNotMean(ToyNoise):
    """The gradient of a sum of log-densities beside their mean."""

    def log_prob_grad(self, next, transition, x, v, i, sigmas):
        found = ToyNoise.log_prob_grad(self, next, transition, x, v, i, sigmas)
        return found * x[0].numel()


@frozen
class WrongDrift(ToyNoise):
    """Goes up where the velocity goes down."""

    def transition(self, x, v, i, sigmas):
        return ToyNoise.transition(self, x, -v, i, sigmas)

    def sensitivity(self, i, sigmas):
        return -ToyNoise.sensitivity(self, i, sigmas)


@frozen
class ScoresCertainty(ToyNoise):
    """A log-probability of a deterministic step."""

    def log_prob(self, next, transition):
        return torch.zeros(len(next))


@frozen
class NeverNoisy(ToyNoise):
    """Says it is stochastic and adds no noise."""

    def transition(self, x, v, i, sigmas):
        return Transition(ToyNoise.transition(self, x, v, i, sigmas).mean, 0.0)


@attrs.define(eq=False)
class MixesSamples(ToyBackbone):
    """Less the mean over the batch."""

    def velocity(self, x, sigma, conditioning):
        v = ToyBackbone.velocity(self, x, sigma, conditioning)
        return v - v.mean(dim=0)


@attrs.define(eq=False)
class BeyondWhite(ToyBackbone):
    """Images that are no images."""

    def decode(self, latents):
        return 3 * latents


@attrs.define(eq=False)
class AnyNoise(ToyBackbone):
    """Noise without its seeds."""

    def noise(self, shape, seeds):
        return torch.randn(len(seeds), *shape).double()


@attrs.define(eq=False)
class NoReference(ToyBackbone):
    """Its reference is the trained model."""

    def reference(self):
        import contextlib

        return contextlib.nullcontext()


@attrs.define(eq=False)
class PassesItsNetworkBy(ToyBackbone):
    """Calls the forward of its network and not the network."""

    def velocity(self, x, sigma, conditioning):
        return self.network.forward(x, sigma, conditioning.rows)


@attrs.define(eq=False)
class CutGraph(ToyBackbone):
    """Half of the velocity has no history."""

    def velocity(self, x, sigma, conditioning):
        v = ToyBackbone.velocity(self, x, sigma, conditioning)
        return v / 2 + v.detach() / 2


@attrs.define(eq=False)
class WorksWhenMade(Brightness):
    """Opens a file when it is constructed."""

    def __attrs_post_init__(self):
        Path("/dev/null").read_text()


@attrs.define(eq=False)
class DrawsWhenMade(Brightness):
    """Draws from Python's global generator when it is constructed."""

    def __attrs_post_init__(self):
        random.random()


@attrs.frozen
class ByValue(Brightness):
    """Two of its kind are equal."""


@frozen
class HookDefault(Brightness):
    """A default in a hook."""

    @hookimpl
    def score(self, images, batch=None):
        return images.flatten(1).mean(dim=1)


@frozen
class Unmarked(Brightness):
    """A hook without its mark."""

    def score(self, images):
        return images.flatten(1).mean(dim=1)


@frozen
class AnyField(Brightness):
    """A field that takes anything."""

    level: Any = 0.5
    """Anything."""


@frozen
class Undocumented(Brightness):
    """A field without a word."""

    level: float = 0.5


@attrs.define(eq=False)
class HoldsALambda(Brightness):
    """What no pickle takes."""

    _function: Any = attrs.field(init=False, factory=lambda: lambda x: x)


@attrs.define(eq=False)
class SharedList(Brightness):
    """One list for all."""

    _seen: list = attrs.field(init=False, default=[])


@frozen
class Misdeclared(Brightness):
    """Differentiable in words."""

    differentiable: ClassVar[Any] = "yes"


@attrs.define(eq=False)
class LosesItself(Brightness):
    """A converter that changes its value again and again."""

    level: float = attrs.field(default=1.0, converter=lambda value: value + 1)
    """A number."""


@attrs.define(eq=False)
class WritesAnywhere(Recorder):
    """Writes into the working directory."""

    @hookimpl
    def after_step(self):
        Path("steps.txt").write_text("a step")


@attrs.define(eq=False)
class Fails(Recorder):
    """Raises at the first step."""

    @hookimpl
    def after_step(self):
        raise RuntimeError("it cannot write")
