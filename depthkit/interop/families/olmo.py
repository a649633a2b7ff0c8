"""Dense OLMo models."""

from __future__ import annotations

from collections.abc import Iterator

from depthkit.interop.decoder import Decoder
from depthkit.interop.families import FAMILIES
from depthkit.interop.families.base import Family, lacking_heads


@FAMILIES.register("olmo2")
class Olmo2(Family):
    """OLMo-2: norms after the branches; queries and keys normalised over all heads."""

    source = "arXiv:2501.00656"
    placement = "reordered"
    norms = {
        "mixer.after_branch": "post_attention_layernorm",
        "ffn.after_branch": "post_feedforward_layernorm",
    }
    qk_norm = "all"
    fixed = Family.fixed | {"attention_bias": False}

    def lacks(self, decoder: Decoder) -> Iterator[str]:
        """Also heads that do not add up to the width."""
        yield from super().lacks(decoder)
        yield from lacking_heads(decoder)
