"""Dense Qwen models."""

from __future__ import annotations

from typing import Any

from depthkit.interop.decoder import Decoder
from depthkit.interop.families import FAMILIES
from depthkit.interop.families.base import Family


@FAMILIES.register("qwen2")
class Qwen2(Family):
    """Qwen2 and 2.5: biases on queries, keys and values; layers with and without a window."""

    source = "arXiv:2407.10671"
    bias = "qkv"
    windows = "by_layer"

    def settings(self, decoder: Decoder) -> dict[str, Any]:
        """With the window of every layer."""
        return super().settings(decoder) | by_layer(decoder.windows)


@FAMILIES.register("qwen3")
class Qwen3(Family):
    """Qwen3: queries and keys normalised per head; layers with and without a window."""

    source = "arXiv:2505.09388"
    qk_norm = True
    windows = "by_layer"
    fixed = Family.fixed | {"attention_bias": False}

    def settings(self, decoder: Decoder) -> dict[str, Any]:
        """With the window of every layer."""
        return super().settings(decoder) | by_layer(decoder.windows)


def by_layer(windows: list[int | None]) -> dict[str, Any]:
    """The settings for a window in some of the layers."""
    return {
        "use_sliding_window": any(windows),
        "sliding_window": next(filter(None, windows), None),
        "layer_types": ["sliding_attention" if window else "full_attention" for window in windows],
    }
