"""A reward that is easily hacked, and one whose images have an embedding: real plugins."""

from typing import ClassVar

import attrs
import torch

from headwater import hookimpl

ENTRY_POINTS = {
    "reward saturation": "Saturation",
    "reward mean-colour": "MeanColour",
}


@attrs.frozen(eq=False)
class Saturation:
    """Largest minus least channel, mean over the pixels: it knows nothing of the prompt."""

    differentiable: ClassVar[bool] = True
    needs_text: ClassVar[bool] = False
    margin: ClassVar[float | None] = 1.0

    @hookimpl
    def score(self, images):
        return (images.amax(dim=1) - images.amin(dim=1)).flatten(1).mean(dim=1)


@attrs.frozen(eq=False)
class MeanColour:
    """The mean red, its embedding the mean colour."""

    differentiable: ClassVar[bool] = True
    needs_text: ClassVar[bool] = False
    margin: ClassVar[float | None] = 1.0

    @hookimpl
    def score(self, images):
        return images[:, 0].flatten(1).mean(dim=1)

    def embed(self, images):
        return torch.as_tensor(images).flatten(2).mean(dim=2)
