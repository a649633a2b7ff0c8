"""One `attend` with the same semantics on every backend; adding a backend is one registered file.

A forward makes a `Request`, `prepare` chooses the backend and makes its mask once for all layers, and every
layer calls `attend`.

Shapes: B batch, T queries, S keys (S >= T: the queries are the last T positions), H heads, K key/value heads
(H is a multiple of K), C head_dim.
"""

from depthkit.kernels.attention.base import ATTENTION, Backend, Request
from depthkit.kernels.attention.choice import Prepared, Verdict, attend, names, prepare, survey
from depthkit.kernels.attention.masks import Dense, attention_mask, attention_probabilities

__all__ = [
    "ATTENTION",
    "Backend",
    "Dense",
    "Prepared",
    "Request",
    "Verdict",
    "attend",
    "attention_mask",
    "attention_probabilities",
    "names",
    "prepare",
    "survey",
]
