"""Depth x step pictures of one quantity."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

WIDTH = 480
HEIGHT = 320
"""Pixels that a picture is scaled up to, at least about; more steps or visits make it larger."""

MAX_COLUMNS = 960
"""Columns a picture is thinned out to; a run has more steps than a screen has pixels."""

UNDEFINED = (128, 128, 128)


def draw(history: Sequence[Sequence[float | None]]) -> NDArray[np.uint8]:
    """Colour a history `[steps][visits]`: time to the right, depth upwards, log scale from dark to bright.

    The scale runs from the smallest to the largest positive value. Null and values that have no
    logarithm are grey.

    Returns:
        `[height, width, 3]` uint8.
    """
    import matplotlib  # takes half a second, and many a run ends without a picture

    depth = max(len(row) for row in history)  # loop counts may change from step to step
    rectangle = [[*row, *[None] * (depth - len(row))] for row in history]
    table = np.array(rectangle, dtype=np.float64).T[::-1]  # [visits, steps], the last visit on top
    table = table[:, np.linspace(0, table.shape[1] - 1, min(table.shape[1], MAX_COLUMNS)).round().astype(int)]
    known = np.isfinite(table) & (table > 0)
    logs = np.log10(np.where(known, table, 1.0))
    low, high = (logs[known].min(), logs[known].max()) if known.any() else (0.0, 0.0)
    scaled = (logs - low) / (high - low if high > low else 1.0)
    pixels = (matplotlib.colormaps["viridis"](scaled)[..., :3] * 255).round().astype(np.uint8)
    pixels[~known] = UNDEFINED
    rows, columns = table.shape
    return pixels.repeat(max(1, HEIGHT // rows), axis=0).repeat(max(1, WIDTH // columns), axis=1)
