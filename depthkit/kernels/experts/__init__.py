"""One expert computation with the same semantics on every backend, behind a router that is ours.

Shapes: N tokens, k choices a token, E experts, D width, F hidden width.
"""

from __future__ import annotations

from depthkit.kernels.experts import grouped, loop, megablocks
from depthkit.kernels.experts.feed_forward import Experts
from depthkit.kernels.experts.grouped_mm import implementation
from depthkit.kernels.experts.parts import megablocks_rows
from depthkit.registry import unknown

BACKENDS: dict[str, Experts] = {
    "grouped": grouped.compute,
    "loop": loop.compute,
    "megablocks": megablocks.compute,
}
"""`grouped` is torch's grouped matrix product and the default, `loop` the reference in any dtype, and
`megablocks` goes through MegaBlocks' gather and scatter kernels and grouped_gemm (arXiv:2211.15841)."""


def backend(name: str) -> Experts:
    """The expert computation `(h, index, weights, gate, up, down) -> y`, dropless.

    `h [N, D]`, `index [N, k]` int64 (the chosen experts), `weights [N, k]` fp32, `gate` and `up` `[E, F, D]`,
    `down [E, D, F]`; `gate` None means the two-matrix feed-forward with the exact GELU:

        y_n = sum_j weights[n, j] * down_e(silu(gate_e h_n) * up_e h_n),   e = index[n, j]

    The result has the dtype of `h`. Matrix products run in the autocast dtype, the k contributions are summed
    in fp32 (fp64 for fp64 input, which only `loop` takes). An expert without tokens gets a zero gradient.

    Raises:
        ValueError: unknown name. Backends raise it when called with what they or this machine cannot do.
    """
    if name not in BACKENDS:
        raise ValueError(unknown("expert backend", name, BACKENDS))
    return BACKENDS[name]


def status() -> list[tuple[str, str, str]]:
    """What would run here, as rows `(name, state, detail)`; imports no kernel library."""
    product = implementation()
    state = "available" if product else "unavailable"
    return [
        ("grouped", state, product or "this torch has no grouped_mm"),
        ("loop", "available", "the reference: one expert after the other, any dtype"),
        *megablocks_rows(),
    ]
