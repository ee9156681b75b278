"""`tiny-jpeg-size`: a reward without a gradient."""

import io

import pytest
import torch
from PIL import Image

from headwater_tiny.rewards import TinyJpegSize


def test_noise_is_larger_than_a_flat_image_and_small_is_its_negative():
    flat = torch.full((1, 3, 32, 32), 0.5)
    noise = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    large = TinyJpegSize().score(torch.cat([flat, noise]))
    assert large[1] > 2 * large[0] > 0
    small = TinyJpegSize(prefer="small").score(torch.cat([flat, noise]))
    assert torch.equal(small, -large)


@pytest.mark.parametrize("quality", [50, 95])
def test_it_is_the_length_of_the_file(quality):
    levels = torch.arange(3 * 32 * 32).view(32, 32, 3).remainder(256).to(torch.uint8)
    file = io.BytesIO()
    Image.fromarray(levels.numpy()).save(file, format="JPEG", quality=quality)
    image = levels.permute(2, 0, 1).unsqueeze(0).float() / 255
    got = TinyJpegSize(quality=quality).score(image)
    assert float(got) * 1000 == pytest.approx(len(file.getvalue()))


def test_it_refuses_another_size():
    with pytest.raises(ValueError, match="32, 32"):
        TinyJpegSize().score(torch.zeros(1, 3, 16, 16))
