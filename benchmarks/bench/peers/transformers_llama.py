"""Hugging Face transformers' Llama with its default attention on CPUs, `sdpa`."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from benchmarks.bench.candidate import Pairing, Peer, layer
from benchmarks.bench.peers import PEERS
from benchmarks.bench.shapes import HEAD_DIM, VOCABULARY, Shape

_IN_LAYER = {
    "mixer.norm": "input_layernorm",
    "ffn.norm": "post_attention_layernorm",
    **{f"mixer.{name}": f"self_attn.{name}_proj" for name in ("q", "k", "v", "o")},
    **{f"ffn.{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")},
}


@PEERS.register("transformers")
class TransformersLlama(Peer):
    """`LlamaForCausalLM` and its own loss."""

    def build(self, shape: Shape) -> nn.Module:
        """See `Peer`."""
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=shape.dim,
            intermediate_size=shape.hidden,
            num_hidden_layers=shape.depth,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=HEAD_DIM,
            max_position_embeddings=shape.length,
            rms_norm_eps=1e-6,
            tie_word_embeddings=False,
            use_cache=False,
        )
        return LlamaForCausalLM(config)

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        """See `Peer`; targets are shifted already."""
        return self.model(input_ids=ids, labels=targets, shift_labels=targets).loss

    def compile(self) -> None:
        """Each layer on its own."""
        for block in self.model.model.layers:  # type: ignore[union-attr]
            block.compile()

    def pairings(self) -> Iterator[Pairing]:
        """See `Peer`."""
        yield Pairing("model.embed_tokens.weight", ("embed.weight",))
        yield Pairing("model.norm.weight", ("final_norm.weight",))
        yield Pairing("lm_head.weight", ("head.weight",))
        for number in range(self.shape.depth):
            for ours, theirs in _IN_LAYER.items():
                yield Pairing(f"model.layers.{number}.{theirs}.weight", layer(number, ours))
