"""Llama and Mistral."""

from __future__ import annotations

from collections.abc import Iterator

from depthkit.interop.decoder import Decoder
from depthkit.interop.families import FAMILIES
from depthkit.interop.families.base import Family


@FAMILIES.register("llama")
class Llama(Family):
    """Llama 1 to 3 without its stretched RoPE, SmolLM, TinyLlama, and everything that copies their shape."""

    source = "arXiv:2302.13971"
    fixed = Family.fixed | {"attention_bias": False, "mlp_bias": False}

    def lacks(self, decoder: Decoder) -> Iterator[str]:
        """Also a width that its config refuses."""
        yield from super().lacks(decoder)
        if decoder.dim % decoder.mixer.num_heads:
            yield f"dim {decoder.dim}, no multiple of num_heads {decoder.mixer.num_heads}"


@FAMILIES.register("mistral")
class Mistral(Family):
    """Llama with a sliding window."""

    source = "arXiv:2310.06825"
    windows = "alike"

    def settings(self, decoder: Decoder) -> dict[str, object]:
        """With the window."""
        return super().settings(decoder) | {"sliding_window": decoder.windows[0]}
