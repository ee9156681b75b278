"""The contract of a backbone."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, ClassVar

import pytest

from headwater.testing.loaded import LoadedContract


class BackboneContract(LoadedContract):
    """What a backbone owes: a velocity, differentiable and of each sample by itself, and what
    belongs to it. Ask for float64 in its settings where it can, so that little is rounding."""

    kind: ClassVar[str] = "backbone"
    size: ClassVar[tuple[int, int]] = (32, 32)
    """Height and width of its images."""
    tolerance: ClassVar[float] = 1e-5
    """Relative: by how much a sample may depend on its batch, and the slope on rounding."""

    def use(self, plugin: Any, own: dict[str, Any]) -> dict[str, Any]:
        """Its run: a short rollout at its size."""
        height, width = self.size
        rollout = {"steps": 2, "height": height, "width": width, "guidance": self.guidance}
        return {"backbone": own, "rollout": rollout, "optimizer": {"lr": 1e-3}}

    @pytest.fixture
    def case(self, headwater_loaded: Any) -> Any:
        """Three states at three sigmas with their conditioning."""
        import torch

        from headwater.types import Request

        records = self.prompt_records()
        shape = headwater_loaded.shape(Request(*self.size))
        x = headwater_loaded.noise(shape, [5, 6, 7]).to(self.device)
        sigma = torch.tensor([0.9, 0.5, 0.2], device=self.device)
        prompts = [records[i % len(records)] for i in range(3)]
        return x, sigma, headwater_loaded.encode(prompts)

    def test_each_sample_starts_from_its_own_seed(self, headwater_loaded: Any) -> None:
        """`noise` depends on seeds alone: (B, *shape), unit normal, at least float32."""
        import torch

        from headwater.types import Request

        shape = headwater_loaded.shape(Request(*self.size))
        many = headwater_loaded.noise(shape, [1, 2, 3])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            alone = headwater_loaded.noise(shape, [2])
        assert many.shape == (3, *shape), f"noise has shape {tuple(many.shape)}, not (3, *{shape})"
        assert torch.equal(alone[0], many[1]), "the noise of a seed depends on its batch or on time"
        assert not torch.equal(many[0], many[1]), "two seeds give one noise"
        assert many.element_size() >= 4, f"noise is {many.dtype}; at least float32"
        numbers = headwater_loaded.noise(shape, range(64)).double()
        assert abs(float(numbers.std()) - 1) < 0.1, f"its deviation is {float(numbers.std()):.3g}"

    def test_sigmas_fall_from_1_to_0(self, headwater_loaded: Any) -> None:
        """(N + 1,) float32 on the CPU, exactly 1 to exactly 0, falling; 1 step may be refused."""
        import torch

        from headwater.types import Request

        shape = headwater_loaded.shape(Request(*self.size))
        for steps in (1, 2, 25):
            try:
                found = headwater_loaded.sigmas(steps, shape)
            except ValueError as error:
                assert steps == 1, f"{steps} steps are refused: {error}"
                continue
            assert found.shape == (steps + 1,), f"{steps} steps have {len(found)} sigmas"
            fine = found.dtype == torch.float32 and found.device.type == "cpu"
            assert fine, f"sigmas are {found.dtype} on {found.device}; float32 on the CPU"
            ends = (float(found[0]), float(found[-1]))
            assert ends == (1.0, 0.0), f"sigmas go from {ends[0]} to {ends[1]}"
            assert (found.diff() < 0).all(), f"sigmas do not fall: {found.tolist()}"

    def test_a_size_it_cannot_make_is_refused(self, headwater_loaded: Any) -> None:
        """ValueError with a sentence, before any network runs."""
        from headwater.types import Request

        for height, width in ((7, 13), (0, 32), (1_000_003, 32)):
            try:
                shape = headwater_loaded.shape(Request(height, width))
            except ValueError as error:
                assert len(str(error).split()) > 3, f"{height} x {width}: it says {error!s}"
            else:
                assert min(shape) > 0, f"{height} x {width} gives the latent shape {shape}"

    def test_conditioning_is_indexed_by_sample(self, headwater_loaded: Any, case: Any) -> None:
        """`len` and `index` with repeats, in any order; encoded without history."""
        x, sigma, conditioning = case
        assert len(conditioning) == 3, f"three prompts have a conditioning of {len(conditioning)}"
        order = [2, 0, 0, 1]
        taken = conditioning.index(order)
        assert len(taken) == 4, "index([2, 0, 0, 1]) has not four rows"
        found = headwater_loaded.velocity(x[order], sigma[order], taken)
        expected = headwater_loaded.velocity(x, sigma, conditioning)[order]
        assert self.near(found, expected), "velocities of indexed samples are not those samples'"

    def test_velocity_has_the_shape_of_the_state(self, headwater_loaded: Any, case: Any) -> None:
        """(B, *latent), finite, at least float32, with history in x and in the weights."""
        x, sigma, conditioning = case
        v = headwater_loaded.velocity(x, sigma, conditioning)
        assert v.shape == x.shape, f"velocity has shape {tuple(v.shape)} at {tuple(x.shape)}"
        assert v.isfinite().all(), "velocity is not finite"
        assert v.element_size() >= 4, f"velocity is {v.dtype}; cast it up to float32"
        assert v.requires_grad, "velocity has no history: nothing would be trained"

    def test_samples_do_not_mix(self, headwater_loaded: Any, case: Any) -> None:
        """Row b depends on x, sigma and prompt b alone: `fused` puts other steps beside it."""
        import torch

        x, sigma, conditioning = case
        with torch.no_grad():
            together = headwater_loaded.velocity(x, sigma, conditioning)
            for b in range(3):
                rows = slice(b, b + 1)
                alone = headwater_loaded.velocity(x[rows], sigma[rows], conditioning.index([b]))
                assert self.near(alone, together[rows]), (
                    f"sample {b} alone has another velocity than among others; take sigma per "
                    f"sample, and nothing over the batch"
                )

    def test_velocity_is_one_function(self, headwater_loaded: Any, case: Any) -> None:
        """Twice the same bits: no dropout, no draw; and with gradients what it is without."""
        import torch

        x, sigma, conditioning = case
        before = torch.get_rng_state()
        first = headwater_loaded.velocity(x, sigma, conditioning).detach()
        with torch.no_grad():
            second = headwater_loaded.velocity(x, sigma, conditioning)
        assert self.near(first, second), "two evaluations differ: switch dropout off"
        assert torch.equal(before, torch.get_rng_state()), "velocity draws random numbers"

    def test_its_gradient_is_the_slope(self, headwater_loaded: Any, case: Any) -> None:
        """In x and in the trained weights, against a central difference of the velocity."""
        import torch

        x, sigma, conditioning = case
        weights = list(headwater_loaded.trainable().values())
        kept = [w.detach().clone() for w in weights]
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():  # a fresh LoRA has B = 0, where half of its gradient is zero
            for w in weights:
                w += 0.02 * torch.randn(w.shape, generator=generator).to(w)
        leaf = x.clone().requires_grad_()
        out = headwater_loaded.velocity(leaf, sigma, conditioning)
        cotangent = torch.randn(out.shape, generator=generator).to(out)
        grads = torch.autograd.grad((out * cotangent).sum(), [leaf, *weights], allow_unused=True)
        bare = [
            name
            for name, g in zip(headwater_loaded.trainable(), grads[1:], strict=True)
            if g is None
        ]
        assert not bare, f"{bare[0]} is trained and gets no gradient"
        assert grads[0] is not None, "velocity is not differentiable in x"

        def value(size: float) -> float:
            with torch.no_grad():
                for w, g in zip(weights, grads[1:], strict=True):
                    w += size * g / norm
                v = headwater_loaded.velocity(x + size * grads[0] / norm, sigma, conditioning)
                for w, g in zip(weights, grads[1:], strict=True):
                    w -= size * g / norm
                return float((v.double() * cotangent.double()).sum())

        norm = math.sqrt(sum(float(g.double().square().sum()) for g in grads))
        slopes = [(value(h) - value(-h)) / (2 * h) for h in (1e-2, 1e-3, 1e-4, 1e-5)]
        with torch.no_grad():
            for w, old in zip(weights, kept, strict=True):
                w.copy_(old)
        error = min(abs(slope - norm) / norm for slope in slopes)
        assert error < max(100 * self.tolerance, 1e-4), (
            f"along its gradient the velocity rises by {slopes}, the gradient says {norm:.6g}"
        )

    def test_it_calls_its_network(self, headwater_loaded: Any, case: Any) -> None:
        """Always `self.network`: a run replaces that by its wrapped self."""
        calls = []
        handle = headwater_loaded.network.register_forward_pre_hook(lambda *_: calls.append(1))
        headwater_loaded.velocity(*case)
        handle.remove()
        assert calls, "velocity does not go through self.network; a wrapped one would be passed by"
        forwards, backwards = headwater_loaded.network_evaluations(self.guidance)
        assert 1 <= backwards <= forwards, f"network_evaluations gives {forwards, backwards}"

    def test_images_are_within_0_and_1(self, headwater_loaded: Any, case: Any) -> None:
        """(B, 3, H, W), differentiable, each sample by itself, at least float32."""
        import torch

        x = case[0].clone().requires_grad_()
        images = headwater_loaded.decode(x)
        assert images.shape == (3, 3, *self.size), f"images are {tuple(images.shape)}"
        assert images.element_size() >= 4, f"images are {images.dtype}; cast them up to float32"
        fine = images.isfinite().all() and images.min() >= 0 and images.max() <= 1
        assert fine, f"images go from {float(images.min()):.3g} to {float(images.max()):.3g}"
        (gradient,) = torch.autograd.grad(images[1].sum(), x)
        assert gradient[1].any() and gradient.isfinite().all(), "decode has no finite gradient"
        assert not gradient[0].any() and not gradient[2].any(), "decode mixes samples"

    def test_within_reference_it_is_the_model_before_training(
        self, headwater_loaded: Any, case: Any
    ) -> None:
        """Its velocities are those of the untrained weights, and afterwards the trained ones'."""
        import torch

        try:
            with headwater_loaded.reference():
                pass
        except ValueError as error:
            assert len(str(error).split()) > 3, f"reference() refuses with {error!s}"
            return  # full training has no adapter to switch off
        weights = list(headwater_loaded.trainable().values())
        with torch.no_grad():
            before = headwater_loaded.velocity(*case)
            kept = [w.clone() for w in weights]
            for w in weights:
                w += 0.05
            trained = headwater_loaded.velocity(*case)
            with headwater_loaded.reference():
                inside = headwater_loaded.velocity(*case)
            after = headwater_loaded.velocity(*case)
            for w, old in zip(weights, kept, strict=True):
                w.copy_(old)
        assert not self.near(trained, before), "its velocity does not depend on its trained weights"
        assert self.near(inside, before), "reference() does not give the model before training"
        assert torch.equal(after, trained), "reference() does not put the trained weights back"

    def test_it_exports_its_weights(self, headwater_loaded: Any, tmp_path: Path) -> None:
        """`export` writes files into the folder, safetensors among them; nothing is pickled."""
        headwater_loaded.export(tmp_path)
        names = [p.name for p in tmp_path.rglob("*") if p.is_file()]
        assert any(name.endswith(".safetensors") for name in names), f"export writes {names}"
        pickled = [n for n in names if n.endswith((".bin", ".pt", ".pth", ".pkl", ".ckpt"))]
        assert not pickled, f"export writes {pickled[0]}; write safetensors"

    def test_it_describes_itself_without_weights(self, plugin: Any) -> None:
        """`describe` of a plugin that is not loaded: facts that JSON takes."""
        found = dict(plugin.describe())
        assert found, "describe() says nothing"
        json.dumps(found, default=str)

    def test_on_the_meta_device_it_makes_shapes(
        self, cls: Any, headwater_table: dict[str, Any]
    ) -> None:
        """Where it declares `loads_on_meta`: velocity and images without data, for plans."""
        import torch

        from headwater.types import Request

        if not getattr(cls, "loads_on_meta", False):
            return
        plugin = self.load_fresh(headwater_table, device="meta")
        shape = plugin.shape(Request(*self.size))
        x = torch.zeros(2, *shape, device="meta")
        sigma = torch.zeros(2, device="meta")
        v = plugin.velocity(x, sigma, plugin.encode(self.prompt_records()[:2]))
        assert v.device.type == "meta" and v.shape == x.shape, "velocity on meta has another shape"
        assert plugin.decode(x).shape == (2, 3, *self.size), "images on meta have another shape"

    def near(self, one: Any, other: Any) -> bool:
        """Equal to the tolerance, relative to the largest number."""
        one, other = one.detach(), other.detach()
        size = float(other.abs().max())
        return float((one - other).abs().max()) <= self.tolerance * max(size, 1e-30)
