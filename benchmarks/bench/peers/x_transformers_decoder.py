"""x-transformers' decoder as a Llama."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.bench.candidate import Pairing, Peer, layer
from benchmarks.bench.peers import PEERS
from benchmarks.bench.shapes import HEAD_DIM, VOCABULARY, Shape


@PEERS.register("x-transformers")
class XTransformersDecoder(Peer):
    """`TransformerWrapper(Decoder)` with flash attention; the bias that its gated input has is taken out."""

    def build(self, shape: Shape) -> nn.Module:
        """See `Peer`."""
        from x_transformers import Decoder, TransformerWrapper

        layers = Decoder(
            dim=shape.dim,
            depth=shape.depth,
            heads=shape.heads,
            attn_dim_head=HEAD_DIM,
            attn_kv_heads=shape.kv_heads,
            attn_flash=True,
            rotary_pos_emb=True,
            rotary_emb_dim=HEAD_DIM,
            ff_glu=True,
            ff_swish=True,
            ff_no_bias=True,
            ff_mult=shape.hidden / shape.dim,
            use_rmsnorm=True,
            norm_add_unit_offset=False,
        )
        model = TransformerWrapper(
            num_tokens=VOCABULARY,
            max_seq_len=shape.length,
            use_abs_pos_emb=False,
            tie_embedding=False,
            attn_layers=layers,
        )
        for _, branch, _ in layers.layers[1::2]:
            branch.ff[0].proj.bias = None
        return model

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        """See `Peer`; the cross-entropy of its `AutoregressiveWrapper`, without the shift."""
        return F.cross_entropy(self.model(ids).transpose(1, 2), targets)

    def pairings(self) -> Iterator[Pairing]:
        """See `Peer`."""
        yield Pairing("token_emb.emb.weight", ("embed.weight",))
        yield Pairing("attn_layers.final_norm.g", ("final_norm.weight",))
        yield Pairing("to_logits.weight", ("head.weight",))
        for number in range(self.shape.depth):
            yield from self._layer(number)

    def _layer(self, number: int) -> Iterator[Pairing]:
        mixer, ffn = (f"attn_layers.layers.{2 * number + branch}" for branch in (0, 1))
        yield Pairing(f"{mixer}.0.0.g", layer(number, "mixer.norm"))
        queries, keys = heads(self.shape), torch.arange(self.shape.kv_heads)
        yield Pairing(f"{mixer}.1.to_q.weight", layer(number, "mixer.q"), side_by_side(queries))
        yield Pairing(f"{mixer}.1.to_k.weight", layer(number, "mixer.k"), side_by_side(keys))
        yield Pairing(f"{mixer}.1.to_v.weight", layer(number, "mixer.v"))
        yield Pairing(f"{mixer}.1.to_out.weight", layer(number, "mixer.o"), columns=whole(queries))
        yield Pairing(f"{ffn}.0.0.g", layer(number, "ffn.norm"))
        yield Pairing(f"{ffn}.1.ff.0.proj.weight", layer(number, "ffn.up", "ffn.gate"))
        yield Pairing(f"{ffn}.1.ff.2.weight", layer(number, "ffn.down"))


def heads(shape: Shape) -> Tensor:
    """Which of depthkit's query heads stands at every place: theirs go through key/value heads in turn."""
    return torch.arange(shape.heads).view(shape.kv_heads, -1).T.flatten()


def side_by_side(heads: Tensor) -> Tensor:
    """Rows of `heads` for rotary pairs that lie side by side and not half a head apart."""
    pairs = torch.arange(HEAD_DIM).view(2, HEAD_DIM // 2).T.flatten()
    return (HEAD_DIM * heads[:, None] + pairs).flatten()


def whole(heads: Tensor) -> Tensor:
    """Channels of `heads`."""
    return (HEAD_DIM * heads[:, None] + torch.arange(HEAD_DIM)).flatten()
