"""GPT-NeoX where its branches follow one another; the published models run them side by side.

Shapes: H heads, C channels of a head, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from depthkit.interop.decoder import Decoder
from depthkit.interop.families import FAMILIES
from depthkit.interop.families.base import Family, lacking_heads
from depthkit.interop.links import Link, fused_heads, same, zeros
from depthkit.model import BlockConfig

LINEAR = {
    "attention.dense": "mixer.branch.o",
    "mlp.dense_h_to_4h": "ffn.branch.up",
    "mlp.dense_4h_to_h": "ffn.branch.down",
}
"""Their matrices with a bias that depthkit lacks -> ours."""


@FAMILIES.register("gpt_neox")
class GPTNeoX(Family):
    """GPT-NeoX with LayerNorm, GELU and heads of their own keys; biases that depthkit lacks must be zero."""

    source = "arXiv:2204.06745"
    norm_kind = "layer"
    ffn_kinds = ("gelu",)
    bias = "qkv"
    fixed = {"hidden_act": "gelu", "attention_bias": True, "use_parallel_residual": False}
    dropouts = ("attention_dropout", "hidden_dropout")

    def lacks(self, decoder: Decoder) -> Iterator[str]:
        """Also grouped queries, and norms without a shift."""
        yield from super().lacks(decoder)
        yield from lacking_heads(decoder)
        if decoder.mixer.kv_heads != decoder.mixer.num_heads:
            yield f"num_kv_heads {decoder.mixer.kv_heads}, not num_heads"
        if not decoder.norm.bias:
            yield "norm.bias false"

    def settings(self, decoder: Decoder) -> dict[str, Any]:
        """With names of its own."""
        rope = {"rope_type": "default", "rope_theta": decoder.mixer.rope_base, "partial_rotary_factor": 1.0}
        own = {"layer_norm_eps": decoder.norm.eps, "rope_parameters": rope}
        foreign = ("rms_norm_eps", "num_key_value_heads", "head_dim")
        return {k: v for k, v in super().settings(decoder).items() if k not in foreign} | own

    def eps(self, config: Any) -> float:
        """Epsilon of the norms."""
        return config.layer_norm_eps

    def mixer(self, config: Any, layer: int) -> dict[str, Any]:
        """The attention of one layer; every head has keys and values of its own."""
        return super().mixer(config, layer) | {"num_kv_heads": None, "head_dim": None}

    def ffn(self, config: Any, layer: int) -> dict[str, Any]:
        """The feed-forward of one layer."""
        return {"kind": "gelu", "hidden_dim": config.intermediate_size}

    def links(self, decoder: Decoder) -> Iterator[Link]:
        """Every tensor of the model, under names of its own."""
        yield same("gpt_neox.final_layer_norm.bias", "final_norm.bias")
        renamed = {"model.norm.weight": "gpt_neox.final_layer_norm.weight"}
        renamed |= {"model.embed_tokens.weight": "gpt_neox.embed_in.weight"}
        for link in super().links(decoder):
            theirs = renamed.get(link.theirs, link.theirs.replace("model.layers.", "gpt_neox.layers."))
            yield link._replace(theirs=theirs)

    def layer_links(self, decoder: Decoder, layer: BlockConfig) -> Iterator[Link]:
        """Every tensor of one layer."""
        for ours, theirs in self.norms.items():
            yield same(f"{theirs}.weight", f"{ours}.weight")
            yield same(f"{theirs}.bias", f"{ours}.bias")
        for kind in ("weight", "bias"):
            parts = [f"mixer.branch.{name}.{kind}" for name in "qkv"]
            yield fused_heads(f"attention.query_key_value.{kind}", decoder.head_dim, *parts)
        for theirs, ours in LINEAR.items():
            yield same(f"{theirs}.weight", f"{ours}.weight")
            yield zeros(f"{theirs}.bias")
