"""What MegaBlocks is made of on this machine: its compiled parts, or torch functions in their place.

MegaBlocks is Python and Triton around a compiled extension, `megablocks_ops`, and the package `grouped_gemm`.
Where one of the two is not installed, a module of `stand_ins` takes its name when the backend is first used.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

PAGE = "docs/megablocks.md"
ABSENT = f"not installed; see {PAGE}"
STAND_INS = {
    "megablocks_ops": "depthkit.kernels.experts.stand_ins.megablocks_ops",
    "grouped_gemm": "depthkit.kernels.experts.stand_ins.grouped_gemm",
}
"""Compiled part -> the module that takes its place where it is not installed."""


class Parts(NamedTuple):
    """The modules that the backend calls."""

    ops: Any
    """`megablocks.ops`: sort, histogram, cumulative sum, gather and scatter."""
    gmm: Callable[..., Tensor]
    """`grouped_gemm.ops.gmm`."""
    counts_on_host: bool
    """grouped_gemm reads the group sizes on the host; the stand-in takes them where they are."""
    interpreted: bool
    """The Triton kernels run in Triton's interpreter, on tensors of any device."""


def is_stand_in(name: str) -> bool:
    """Whether depthkit's torch functions serve as the compiled part `name`."""
    loaded = sys.modules.get(name)
    return find_spec(name) is None if loaded is None else loaded.__name__ == STAND_INS[name]


@functools.cache
def load() -> Parts:
    """Import MegaBlocks, with stand-ins under the names of the compiled parts that are not installed.

    Raises:
        ValueError: MegaBlocks or something that it needs cannot be imported.
    """
    if find_spec("megablocks") is None:
        raise ValueError(f"the 'megablocks' expert backend needs MegaBlocks, which is {ABSENT}")
    try:
        for name, module in STAND_INS.items():
            if is_stand_in(name):
                sys.modules[name] = importlib.import_module(module)
        ops = importlib.import_module("megablocks.ops")
        kernels = importlib.import_module("megablocks.backend.kernels")
        gmm = importlib.import_module("grouped_gemm").ops.gmm
    except ImportError as problem:
        raise ValueError(f"MegaBlocks cannot be imported: {problem}; see {PAGE}") from problem
    interpreted = _is_interpreted(kernels)
    if interpreted:
        _suit_interpreter(kernels)
    return Parts(ops, gmm, not is_stand_in("grouped_gemm"), interpreted)


def _is_interpreted(kernels: Any) -> bool:
    from triton.runtime.interpreter import InterpretedFunction

    return isinstance(kernels._padded_copy.fn, InterpretedFunction)


def _suit_interpreter(kernels: Any) -> None:
    """One configuration for each kernel: Triton's interpreter cannot time several to choose."""
    from triton.runtime import Autotuner

    for kernel in vars(kernels).values():
        if isinstance(kernel, Autotuner):
            kernel.configs = kernel.configs[:1]


def _where() -> tuple[str, str]:
    """Where the Triton kernels would run: `(state, detail)`."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "available", "in Triton's interpreter"
    if torch.cuda.is_available():
        return "available", "on the GPU"
    return "unavailable", "no GPU, and TRITON_INTERPRET=1 is not set"


def megablocks_rows() -> list[tuple[str, str, str]]:
    """Rows `(name, state, detail)` on MegaBlocks and its compiled parts; imports none of them.

    A part is `own` where it is installed and `stand-in` where depthkit's torch functions do its work.
    """
    if find_spec("megablocks") is None:
        return [("megablocks", "unavailable", f"MegaBlocks is {ABSENT}")]
    state, where = _where()
    rows = [("megablocks", state, f"MegaBlocks {version('megablocks')}: Triton gather and scatter, {where}")]
    for name in STAND_INS:
        stand_in = is_stand_in(name)
        detail = "not installed: depthkit's torch functions" if stand_in else "as installed"
        rows.append((name, "stand-in" if stand_in else "own", detail))
    return rows
