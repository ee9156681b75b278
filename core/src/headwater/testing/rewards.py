"""The contract of a reward."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from headwater.testing.loaded import LoadedContract


class RewardContract(LoadedContract):
    """What a reward owes: one score an image, of that image and its prompt alone."""

    kind: ClassVar[str] = "reward"
    hooks: ClassVar[tuple[str, ...]] = ("score",)
    size: ClassVar[tuple[int, int]] = (32, 32)
    """Height and width of the images it is tried on."""
    other_sizes: ClassVar[tuple[tuple[int, int], ...]] = ((33, 47), (16, 64))
    """At these it works, or says in a ValueError why not."""
    tolerance: ClassVar[float] = 1e-4
    """Relative: by how much a score may depend on the batch it is in, in float32."""
    slope_tolerance: ClassVar[float] = 0.05
    """Relative: how near the gradient must come to a finite difference of scores."""

    def use(self, plugin: Any, own: dict[str, Any]) -> dict[str, Any]:
        """Its run: trained on where it is differentiable, else beside a trained one."""
        if plugin.differentiable:
            return {"reward": {"own": own}, "algorithm": {"use": "toy-direct"}}
        return {"evaluation": {"reward": {"own": own}}}

    def images(self, count: int, height: int, width: int) -> Any:
        """(B, 3, H, W) in [0.1, 0.9], no two alike, smooth at the scale of a few pixels."""
        import torch

        generator = torch.Generator().manual_seed(count)
        coarse = torch.rand(count, 3, 8, 8, generator=generator)
        smooth = torch.nn.functional.interpolate(coarse, size=(height, width), mode="bilinear")
        return 0.1 + 0.8 * smooth

    def batch(self, count: int, shift: int = 0) -> Any:
        """A batch of `count` of the contract's prompts, from number `shift` on."""
        from headwater.types import Batch

        known = self.prompt_records()
        height, width = self.size
        return Batch(
            prompts=tuple(known[(i + shift) % len(known)] for i in range(count)),
            conditioning=None,
            seeds=tuple(range(count)),
            group_ids=tuple(range(count)),
            height=height,
            width=width,
            steps=1,
        )

    def score(self, plugin: Any, images: Any, batch: Any) -> Any:
        """Call its hook as a run does."""
        from headwater.composition import new_manager

        manager = new_manager()
        manager.register(plugin)
        (found,) = manager.hook.score(images=images.to(self.device), batch=batch)
        return found

    @pytest.fixture
    def three(self) -> Any:
        """Three images."""
        return self.images(3, *self.size)

    def test_it_gives_one_finite_score_an_image(self, headwater_loaded: Any) -> None:
        """(B,), at least float32, on the images' device, also for B = 1."""
        import torch

        for count in (1, 3):
            images = self.images(count, *self.size)
            with torch.no_grad():
                found = self.score(headwater_loaded, images, self.batch(count))
            assert isinstance(found, torch.Tensor), f"score gives {type(found).__name__}, no tensor"
            assert found.shape == (count,), (
                f"score gives shape {tuple(found.shape)} for {count} images, expected ({count},)"
            )
            fine = found.is_floating_point() and found.element_size() >= 4
            assert fine, f"scores are {found.dtype}; cast them up to float32"
            assert found.isfinite().all(), f"scores are not finite: {found.tolist()}"
            assert found.device.type == torch.device(self.device).type, "scores changed device"

    def test_every_size_works_or_is_refused(self, headwater_loaded: Any) -> None:
        """Odd and oblong images give scores, or an error that says which sizes do."""
        from headwater.errors import HeadwaterError

        for height, width in self.other_sizes:
            try:
                found = self.score(headwater_loaded, self.images(2, height, width), self.batch(2))
            except (ValueError, HeadwaterError) as error:  # its own, or a server's refusal
                assert len(str(error).split()) > 3, f"{height} x {width}: the error says {error!s}"
                continue
            assert found.shape == (2,) and found.isfinite().all(), f"{height} x {width}: {found}"

    def test_the_same_images_get_the_same_scores(self, headwater_loaded: Any, three: Any) -> None:
        """Twice the same bits, and nothing is drawn from the process's generators."""
        import torch

        before = torch.get_rng_state()
        first, second = (self.score(headwater_loaded, three, self.batch(3)) for _ in range(2))
        assert torch.equal(first, second), f"two calls give {first.tolist()}, {second.tolist()}"
        assert torch.equal(before, torch.get_rng_state()), "it draws from torch's global generator"

    def test_scores_move_with_their_images(self, headwater_loaded: Any, three: Any) -> None:
        """Permuted images with their prompts get permuted scores."""
        order = [2, 0, 1]
        batch = self.batch(3)
        found = self.score(headwater_loaded, three[order], batch.index(order))
        expected = self.score(headwater_loaded, three, batch)[order]
        assert self.near(found, expected), (
            f"scores of permuted images are {found.tolist()}, expected {expected.tolist()}: "
            f"prompts and images are matched by position"
        )

    def test_a_score_does_not_depend_on_the_batch(self, headwater_loaded: Any, three: Any) -> None:
        """An image alone is judged as among others."""
        batch = self.batch(3)
        expected = self.score(headwater_loaded, three, batch)
        for b in range(3):
            found = self.score(headwater_loaded, three[b : b + 1], batch.index([b]))
            assert self.near(found, expected[b : b + 1]), (
                f"image {b} alone scores {float(found[0]):.6g}, among others "
                f"{float(expected[b]):.6g}: nothing may be taken over the batch"
            )

    def test_images_are_left_as_they_are(self, headwater_loaded: Any, three: Any) -> None:
        """Rewards are called one after the other on the same images."""
        import torch

        before = three.clone()
        self.score(headwater_loaded, three, self.batch(3))
        assert torch.equal(three, before), "score changes the images; it may not work in place"

    def test_its_own_weights_get_no_gradient(self, headwater_loaded: Any, three: Any) -> None:
        """Scores of images without history have none: every weight of a reward is frozen."""
        found = self.score(headwater_loaded, three, self.batch(3))
        assert not found.requires_grad, "freeze its weights: requires_grad_(False) in load"

    def test_needs_text_is_true(self, headwater_loaded: Any, three: Any) -> None:
        """Other prompts are taken; one that says it needs no text gives the same scores for any."""
        import torch

        one, other = (self.score(headwater_loaded, three, self.batch(3, s)) for s in (0, 1))
        assert other.isfinite().all()
        assert headwater_loaded.needs_text or torch.equal(one, other), (
            "it declares needs_text = False and its scores depend on the prompt"
        )

    def test_differentiable_is_true(self, headwater_loaded: Any) -> None:
        """Its gradient is finite, not zero, of its own image only, and a step along it raises the
        score by what it promises. One that is not differentiable is called without."""
        import torch

        if not headwater_loaded.differentiable:
            return
        images = self.images(2, *self.size).double().to(self.device).requires_grad_()
        batch = self.batch(2)
        scores = self.score(headwater_loaded, images, batch)
        assert scores.requires_grad, "it declares differentiable = True; its scores have no history"
        rows = [
            torch.autograd.grad(scores[b], images, retain_graph=b == 0, allow_unused=True)[0]
            for b in range(2)
        ]
        for b, row in enumerate(rows):
            assert row is not None and row.isfinite().all(), f"gradient of image {b} is not finite"
            assert row[b].any(), f"it declares differentiable = True; image {b} has a zero gradient"
            assert not row[1 - b].any(), f"the score of image {b} depends on image {1 - b}"
        slopes = [self.slope(headwater_loaded, images.detach(), batch, rows, e) for e in _STEPS]
        promised = torch.stack([rows[b][b].norm() for b in range(2)]).cpu()
        errors = [float(((s - promised) / promised).abs().max()) for s in slopes]
        assert min(errors) < self.slope_tolerance, (
            f"along its gradient the score rises by {[s.tolist() for s in slopes]}, the gradient "
            f"says {promised.tolist()}: something cuts or bends the graph"
        )

    def slope(self, plugin: Any, images: Any, batch: Any, rows: Any, step: float) -> Any:
        """(B,) central differences of the scores along each image's own gradient."""
        import torch

        unit = torch.stack([rows[b][b] / rows[b][b].norm() for b in range(len(images))])
        with torch.no_grad():
            up, down = (self.score(plugin, images + s * step * unit, batch) for s in (1, -1))
        return (up.double() - down.double()).cpu() / (2 * step)

    def near(self, one: Any, other: Any) -> bool:
        """Equal to the tolerance."""
        import torch

        return torch.allclose(one, other, rtol=self.tolerance, atol=self.tolerance)

    def test_an_embedding_is_one_row_an_image(self, headwater_loaded: Any, three: Any) -> None:
        """Where it has `embed`: finite (B, D), each row of its own image."""
        if not hasattr(headwater_loaded, "embed"):
            return
        found = headwater_loaded.embed(three.to(self.device))
        assert found.dim() == 2 and len(found) == 3, f"embed gives shape {tuple(found.shape)}"
        assert found.isfinite().all(), "embed is not finite"
        alone = headwater_loaded.embed(three[1:2].to(self.device))
        assert self.near(alone, found[1:2]), "the embedding of an image depends on its batch"

    def test_on_the_meta_device_it_makes_shapes(
        self, cls: Any, headwater_table: dict[str, Any]
    ) -> None:
        """Where it declares `loads_on_meta`: scores of shape (B,) without data, for plans."""
        import torch

        if not getattr(cls, "loads_on_meta", False):
            return
        plugin = self.load_fresh(headwater_table, device="meta")
        images = torch.zeros(2, 3, *self.size, device="meta")
        from headwater.composition import new_manager

        manager = new_manager()
        manager.register(plugin)
        (found,) = manager.hook.score(images=images, batch=self.batch(2))
        assert found.shape == (2,) and found.device.type == "meta", "scores on meta are not (B,)"


_STEPS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.001)
"""Lengths of a finite difference: rounding spoils short ones, curvature long ones."""
