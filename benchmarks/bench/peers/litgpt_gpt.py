"""litgpt's GPT as a Llama."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from benchmarks.bench.candidate import Pairing, Peer, layer
from benchmarks.bench.peers import PEERS
from benchmarks.bench.shapes import HEAD_DIM, VOCABULARY, Shape

_IN_LAYER = {
    "norm_1": ("mixer.norm",),
    "attn.qkv": ("mixer.q", "mixer.k", "mixer.v"),
    "attn.proj": ("mixer.o",),
    "norm_2": ("ffn.norm",),
    "mlp.fc_1": ("ffn.gate",),
    "mlp.fc_2": ("ffn.up",),
    "mlp.proj": ("ffn.down",),
}


@PEERS.register("litgpt")
class LitGPT(Peer):
    """`GPT` and the loss of its pretraining script, cross-entropy in chunks of 128 tokens."""

    def build(self, shape: Shape) -> nn.Module:
        """See `Peer`."""
        from litgpt import GPT, Config

        config = Config(
            n_layer=shape.depth,
            n_embd=shape.dim,
            n_head=shape.heads,
            n_query_groups=shape.kv_heads,
            head_size=HEAD_DIM,
            vocab_size=VOCABULARY,
            padded_vocab_size=VOCABULARY,
            block_size=shape.length,
            rotary_percentage=1.0,
            parallel_residual=False,
            bias=False,
            norm_class_name="RMSNorm",
            norm_eps=1e-6,
            mlp_class_name="LLaMAMLP",
            intermediate_size=shape.hidden,
        )
        return GPT(config)

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        """See `Peer`."""
        from litgpt.utils import chunked_cross_entropy

        return chunked_cross_entropy(self.model(ids), targets)

    def pairings(self) -> Iterator[Pairing]:
        """See `Peer`."""
        yield Pairing("transformer.wte.weight", ("embed.weight",))
        yield Pairing("transformer.ln_f.weight", ("final_norm.weight",))
        yield Pairing("lm_head.weight", ("head.weight",))
        for number in range(self.shape.depth):
            for theirs, ours in _IN_LAYER.items():
                yield Pairing(f"transformer.h.{number}.{theirs}.weight", layer(number, *ours))
