"""Every installed backbone passes its contract; families on tiny pipelines of their own classes."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from headwater.testing import BackboneContract

SMALL = {"dtype": "float64", "rank": 2, "alpha": 4.0, "max_length": 24}


class FamilyContract(BackboneContract):
    """A diffusers family, on its tiny pipeline."""

    guidance = 3.0
    tolerance = 1e-6
    own: ClassVar[dict[str, Any]] = {}

    def settings(self, headwater_pipeline):
        return {"model": str(headwater_pipeline(self.name)), **SMALL, **self.own}


class TestTiny(BackboneContract):
    name = "tiny"
    settings = {"dtype": "float64"}
    guidance = 2.0
    prompts = ("a red circle on a white background", "a blue square on a grey background")
    run_prompts = prompts


@pytest.mark.long
class TestTinyInFull(TestTiny):
    settings = {"dtype": "float64", "train": "full", "guidance_gradient": "both"}


class TestSd3(FamilyContract):
    name = "sd3"


class TestFlux(FamilyContract):
    name = "flux"


@pytest.mark.long
class TestFlux2(FamilyContract):
    name = "flux2"
    own = {"text_layers": [1, 2, 3]}


@pytest.mark.long
class TestQwenImage(FamilyContract):
    name = "qwen-image"
    own = {"template": "{}.", "template_tokens": 0}


@pytest.mark.long
class TestZImage(FamilyContract):
    name = "z-image"


class TestMixture(BackboneContract):
    name = "mixture"
    size = (8, 8)
    prompts = ("a ring", "a red cross")
    run_prompts = prompts
