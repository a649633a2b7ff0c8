"""Where the documents of a batch begin once its rows are laid end to end: what varlen kernels read.

Shapes: B batch, T queries, S keys, N = B T queries and M = B S keys in all, R runs of one document in a row.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from depthkit.kernels.attention.base import Request


class Packed(NamedTuple):
    """Pattern of `flash`: the runs, and what each query sees within its own."""

    query_bounds: Tensor
    """`[R + 1]` int32, from 0 to N."""
    key_bounds: Tensor
    """`[R + 1]` int32, from 0 to M."""
    limits: tuple[int, int, int, int]
    """T and S as upper bounds on a run (so that no device value is read for them and nothing recompiles),
    then how many earlier and how many later keys a query sees, -1 for all."""
    causal: bool
    library: str
    """Import name of the flash-attn in use."""


def packed(request: Request, library: str) -> Packed:
    """Runs and reach of a request.

    The queries of a run are its last ones, since the queries are the last T positions of a row. flash-attn
    aligns causal masks and windows to the last query and the last key of a sequence, so a run that began in
    the cache needs nothing more than its own two lengths.

    Raises:
        ValueError: a document id comes back after another one within a row.
    """
    query_bounds, key_bounds = (F.pad(lengths.cumsum(0), (1, 0)).int() for lengths in _lengths(request))
    left = right = -1 if request.window is None else request.window - 1
    if request.causal and request.window is not None:
        right = 0
    limits = (request.queries, request.keys, left, right)
    return Packed(query_bounds, key_bounds, limits, request.causal, library)


def _lengths(request: Request) -> tuple[Tensor, Tensor]:
    """Queries and keys of every run, `[R]` each."""
    documents = request.documents
    if documents is None:
        ones = torch.ones(request.batch, dtype=torch.int64, device=request.device)
        return ones * request.queries, ones * request.keys
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    _refuse_returning(documents, begins)
    runs = (begins.flatten().cumsum(0) - 1).view_as(documents)
    count = int(runs[-1, -1]) + 1
    queries, keys = (torch.bincount(x.flatten(), minlength=count) for x in (runs[:, request.start :], runs))
    return queries, keys


def _refuse_returning(documents: Tensor, begins: Tensor) -> None:
    ordered = documents.sort(dim=1).values
    distinct = 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(1)
    if bool((distinct != begins.sum(1)).any()):
        raise ValueError(
            "documents: an id comes back after another one in the same row, and backend flash takes each "
            "run as a document of its own. Give every run its own id, or use backend sdpa or flex"
        )
