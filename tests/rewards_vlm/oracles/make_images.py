"""Regenerates the test images of this folder from seeds (own code, integer arithmetic only, so it is exact everywhere).

image(seed, height, width) -> uint8 array (height, width, 3).
"""

import numpy as np


def image(seed, height, width):
    rs = np.random.RandomState(seed)  # legacy generator: its stream is frozen by NumPy

    def draw(low, high, size=None):  # low..high inclusive
        return rs.randint(low, high + 1, size=size, dtype=np.int64)

    y = np.arange(height, dtype=np.int64)[:, None]
    x = np.arange(width, dtype=np.int64)[None, :]
    out = np.empty((height, width, 3), dtype=np.int64)
    for c in range(3):  # a ramp plus a triangle wave per channel
        p, q = int(draw(1, 9)), int(draw(1, 9))
        ramp = (p * (255 * x // max(width - 1, 1)) + q * (255 * y // max(height - 1, 1))) // (p + q)
        if int(draw(0, 1)):
            ramp = 255 - ramp
        a, b, half = int(draw(1, 7)), int(draw(1, 7)), int(draw(9, 60))
        wave = np.abs((a * x + b * y) % (2 * half) - half) * 255 // half
        out[..., c] = (3 * ramp + wave) // 4
    out = out + draw(-20, 20, size=(height, width, 3))  # noise
    for _ in range(
        4
    ):  # rectangles and disks with saturated colours: hard edges make bicubic overshoot
        y0, x0 = int(draw(0, height - 1)), int(draw(0, width - 1))
        h, w = int(draw(1, max(height // 3, 1))), int(draw(1, max(width // 3, 1)))
        out[y0 : y0 + h, x0 : x0 + w] = draw(0, 1, size=3) * 255
        cy, cx = int(draw(0, height - 1)), int(draw(0, width - 1))
        r = int(draw(1, max(min(height, width) // 5, 1)))
        disk = (y - cy) ** 2 + (x - cx) ** 2 <= r * r
        out[disk] = draw(0, 255, size=3)
    return np.clip(out, 0, 255).astype(np.uint8)
