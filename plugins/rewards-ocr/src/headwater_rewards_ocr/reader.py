"""RapidOCR on the CPU: pictures in, text out. Its weights come in its wheel."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headwater.errors import PluginError


@attrs.frozen(eq=False)
class Reader:
    """Some OCR engines that read pictures side by side. An engine reads one at a time."""

    engines: int
    threads: int
    confidence: float
    _free: SimpleQueue[Any] = attrs.field(init=False, factory=SimpleQueue)

    def load(self) -> None:
        """Build the engines. PluginError where OpenCV lacks a library of the system."""
        for _ in range(self.engines):
            self._free.put(_engine(self.threads, self.confidence))

    def read(self, images: Tensor) -> list[str]:
        """The text of each picture, its lines joined from top to bottom and left to right.

        images: (B, 3, H, W), rounded to 8 bits before they are read.
        """
        levels = (images.detach().float().clamp(0, 1) * 255).round().to(torch.uint8)
        # OpenCV keeps the channels as blue, green, red.
        arrays = levels.flip(1).permute(0, 2, 3, 1).cpu().contiguous().numpy()
        with ThreadPoolExecutor(self.engines, "headwater-ocr") as pool:
            return list(pool.map(self._read_one, arrays))

    def _read_one(self, array: NDArray[np.uint8]) -> str:
        engine = self._free.get()
        try:
            lines, _ = engine(array, use_cls=False)
        finally:
            self._free.put(engine)
        return "".join(text for _, text, _ in lines or [])


def _engine(threads: int, confidence: float) -> Any:
    try:
        from rapidocr_onnxruntime import RapidOCR
    except ImportError as error:
        raise PluginError(
            f"the reward 'ocr' cannot load RapidOCR: {error}. The package opencv-python needs the "
            f"system's libGL.so.1 and libglib-2.0.so.0 (Debian: libgl1, libglib2.0-0). On machines "
            f"without them put the headless build in its place: pip uninstall -y opencv-python; "
            f"pip install opencv-python-headless."
        ) from error
    # It logs every picture without text.
    logging.getLogger("RapidOCR").setLevel(logging.ERROR)
    return RapidOCR(text_score=confidence, intra_op_num_threads=threads, inter_op_num_threads=1)
