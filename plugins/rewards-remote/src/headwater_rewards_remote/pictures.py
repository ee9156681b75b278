"""Images as JSON: raw little-endian numbers or PNG files, in base64.

{"format": "float32", "shape": [B, 3, H, W], "data": "..."}   exact
{"format": "uint8",   "shape": [B, 3, H, W], "data": "..."}   levels 0 to 255
{"format": "png",     "files": ["...", ...]}                  B files of one size, RGB
"""

from __future__ import annotations

import base64
import binascii
import io
import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

Format = Literal["float32", "uint8", "png"]
FORMATS: tuple[Format, ...] = ("float32", "uint8", "png")
_RAW: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "uint8": np.dtype("u1")}
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


class SizeError(ValueError):
    """More pixels than a server takes."""


def encode(images: Tensor, kind: Format) -> dict[str, Any]:
    """Images (B, 3, H, W) in [0, 1] as JSON; the 8-bit formats round them to 256 levels."""
    images = images.detach().cpu().float()
    if kind == "png":
        files = [_png(image) for image in levels(images).permute(0, 2, 3, 1).numpy()]
        return {"format": kind, "files": [base64.b64encode(file).decode() for file in files]}
    array = (images if kind == "float32" else levels(images)).contiguous().numpy()
    data = base64.b64encode(array.astype(_RAW[kind], copy=False).tobytes()).decode()
    return {"format": kind, "shape": list(array.shape), "data": data}


def decode(found: Any, most_pixels: int) -> Tensor:
    """Images (B, 3, H, W) float32 in [0, 1] of their JSON.

    most_pixels: B H W, at most, else SizeError; it is known before anything is unpacked.
    ValueError says in one sentence what else is wrong.
    """
    if not isinstance(found, Mapping):
        raise ValueError(f"images: expected an object, got {_shown(found)}")
    kind = found.get("format")
    if kind not in FORMATS:
        raise ValueError(f"images.format: expected one of {', '.join(FORMATS)}, got {_shown(kind)}")
    keys = {"format", "files"} if kind == "png" else {"format", "shape", "data"}
    if set(found) != keys:
        listed = ", ".join(sorted(keys))
        raise ValueError(f"images: expected the keys {listed}, got {', '.join(sorted(found))}")
    images = _from_png(found["files"], most_pixels) if kind == "png" else _raw(found, most_pixels)
    if not bool(torch.isfinite(images).all()):
        raise ValueError("images: there are numbers that are not finite")
    return images


def levels(images: Tensor) -> Tensor:
    """Rounded to 256 levels, uint8."""
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)


def _raw(found: Mapping[str, Any], most_pixels: int) -> Tensor:
    kind, shape = _RAW[found["format"]], found["shape"]
    whole = isinstance(shape, list) and all(type(n) is int and n > 0 for n in shape)
    if not whole or len(shape) != 4 or shape[1] != 3:
        raise ValueError(f"images.shape: expected [B, 3, H, W], got {_shown(shape)}")
    _check_pixels(shape[0] * shape[2] * shape[3], most_pixels)
    data = _from_base64(found["data"], "images.data")
    expected = math.prod(shape) * kind.itemsize
    if len(data) != expected:
        raise ValueError(f"images.data: the shape asks for {expected} bytes, got {len(data)}")
    array = np.frombuffer(data, kind).reshape(shape).astype(np.float32)
    images = torch.from_numpy(array)
    return images / 255 if found["format"] == "uint8" else images


def _from_png(files: Any, most_pixels: int) -> Tensor:
    if not isinstance(files, list) or not files:
        raise ValueError(f"images.files: expected a list of PNG files, got {_shown(files)}")
    blobs = [_from_base64(file, f"images.files[{i}]") for i, file in enumerate(files)]
    sizes = [_png_size(blob, i) for i, blob in enumerate(blobs)]
    if len(set(sizes)) > 1:
        raise ValueError(f"images.files: expected one size, got {sorted(set(sizes))[:4]}")
    _check_pixels(len(blobs) * sizes[0][0] * sizes[0][1], most_pixels)
    arrays = np.stack([_pixels(blob, i) for i, blob in enumerate(blobs)])
    return torch.from_numpy(arrays).permute(0, 3, 1, 2).contiguous().float() / 255


def _png_size(blob: bytes, number: int) -> tuple[int, int]:
    """Height and width in the file's header, which is read without unpacking anything."""
    if not blob.startswith(_SIGNATURE) or blob[12:16] != b"IHDR" or len(blob) < 24:
        raise ValueError(f"images.files[{number}]: this is no PNG file")
    return int.from_bytes(blob[20:24]), int.from_bytes(blob[16:20])


def _pixels(blob: bytes, number: int) -> Any:
    try:
        with Image.open(io.BytesIO(blob), formats=["PNG"]) as picture:
            if picture.mode != "RGB":
                raise ValueError(f"expected 8-bit RGB, got mode {picture.mode}")
            return np.array(picture)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"images.files[{number}]: cannot be read: {error}") from None


def _png(array: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, format="PNG", compress_level=1)
    return file.getvalue()


def _from_base64(text: Any, where: str) -> bytes:
    if not isinstance(text, str):
        raise ValueError(f"{where}: expected text in base64, got {_shown(text)}")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{where}: this is no base64: {error}") from None


def _check_pixels(count: int, most: int) -> None:
    if count > most:
        raise SizeError(
            f"images: {count} pixels are more than the {most} that one request may have"
        )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
