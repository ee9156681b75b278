"""Images through JSON and back."""

import base64
import json
import zlib

import pytest
import torch

from headwater_rewards_remote.pictures import SizeError, decode, encode

IMAGES = torch.rand(2, 3, 5, 7, generator=torch.Generator().manual_seed(0))


def through(images, kind):
    return decode(json.loads(json.dumps(encode(images, kind))), 10**6)


def test_float32_is_exact():
    assert torch.equal(through(IMAGES, "float32"), IMAGES)


@pytest.mark.parametrize("kind", ["uint8", "png"])
def test_eight_bit_formats_round_to_the_nearest_of_256_levels(kind):
    found = through(IMAGES, kind)
    assert found.dtype == torch.float32
    assert float((found - IMAGES).abs().max()) <= 0.5 / 255 + 1e-7
    assert torch.equal(through(found, kind), found)


def test_bytes_are_little_endian_and_in_the_order_of_the_axes():
    image = torch.zeros(1, 3, 1, 2)
    image[0, 1, 0, 1] = 1.0
    data = base64.b64decode(encode(image, "float32")["data"])
    assert data == bytes(12) + b"\x00\x00\x80\x3f" + bytes(8)
    assert base64.b64decode(encode(image, "uint8")["data"]) == b"\0\0\0\xff\0\0"


def test_half_types_and_images_beyond_the_range_are_encoded():
    assert torch.equal(through(IMAGES.bfloat16(), "float32"), IMAGES.bfloat16().float())
    assert through(IMAGES * 3 - 1, "png").min() == 0


def raw(**changes):
    return {**encode(IMAGES, "float32"), **changes}


def png(data):
    return {"format": "png", "files": [base64.b64encode(data).decode()]}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (None, "images: expected an object"),
        ([1], "images: expected an object"),
        ({"format": "jpeg", "data": ""}, "images.format: expected one of float32, uint8, png"),
        ({"format": ["png"], "files": []}, "images.format"),
        ({"format": "float32", "data": ""}, "expected the keys data, format, shape"),
        (raw(more=1), "expected the keys"),
        (raw(shape=[2, 3, 5]), r"images.shape: expected \[B, 3, H, W\], got \[2, 3, 5\]"),
        (raw(shape=[2, 4, 5, 7]), "images.shape"),
        (raw(shape=[-2, 3, 5, 7]), "images.shape"),
        (raw(shape=[2.0, 3, 5, 7]), "images.shape"),
        (raw(shape=[True, 3, 5, 7]), "images.shape"),
        (raw(shape=[0, 3, 5, 7]), "images.shape"),
        (raw(shape="2357"), "images.shape"),
        (raw(shape=[1, 3, 5, 7]), "asks for 420 bytes, got 840"),
        (raw(data="a" * 7), "no base64"),
        (raw(data="é" * 8), "no base64"),
        (raw(data=3), "expected text in base64"),
        (
            raw(shape=[1, 3, 1, 1], data=base64.b64encode(b"\0\0\xc0\x7f" * 3).decode()),
            "not finite",
        ),
        ({"format": "png", "files": []}, "expected a list of PNG files"),
        ({"format": "png", "files": [3]}, r"files\[0\]: expected text"),
        (png(b"no picture"), "this is no PNG file"),
        (png(b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + b"\0\0\0\1\0\0\0\1"), "cannot be read"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(found, said):
    with pytest.raises(ValueError, match=said):
        decode(found, 10**6)


def test_png_files_of_other_kinds_and_unequal_sizes_are_refused():
    import io

    from PIL import Image

    def file(mode, size):
        out = io.BytesIO()
        Image.new(mode, size).save(out, format="PNG")
        return base64.b64encode(out.getvalue()).decode()

    with pytest.raises(ValueError, match="expected 8-bit RGB, got mode RGBA"):
        decode({"format": "png", "files": [file("RGBA", (2, 2))]}, 100)
    with pytest.raises(ValueError, match="expected one size"):
        decode({"format": "png", "files": [file("RGB", (2, 2)), file("RGB", (3, 2))]}, 100)


def test_a_small_file_that_unpacks_to_a_huge_picture_is_refused_unread():
    def chunk(kind, data):
        return len(data).to_bytes(4) + kind + data + zlib.crc32(kind + data).to_bytes(4)

    header = (60000).to_bytes(4) + (60000).to_bytes(4) + bytes([8, 2, 0, 0, 0])
    bomb = (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 10**6))
    )
    assert len(bomb) < 2000
    with pytest.raises(SizeError, match="3600000000 pixels are more than"):
        decode(png(bomb), 2**25)
    with pytest.raises(SizeError):
        decode(raw(shape=[10**6, 3, 10**6, 10**6]), 2**25)
