"""Which flash-attn is installed: version 4, 3 or 2, each under an import name of its own."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import sys
from collections.abc import Callable
from typing import Any, NamedTuple


class Library(NamedTuple):
    """One release line of flash-attn; all share the names of the arguments that are used here."""

    label: str
    distribution: str
    """What pip calls it."""
    module: str
    """Where `flash_attn_varlen_func` is."""
    no_limit: int | None
    """How its `window_size` says that a side has no limit."""
    architectures: range
    """Major compute capabilities it is built for."""
    max_head_dim: int


LIBRARIES = (
    Library("flash-attn 4", "flash-attn-4", "flash_attn.cute", None, range(9, 13), 128),
    Library("flash-attn 3", "flash_attn_3", "flash_attn_interface", -1, range(9, 10), 256),
    Library("flash-attn 2", "flash-attn", "flash_attn", -1, range(8, 13), 256),
)
"""The newest first. Limits are those their sources state for the forward and the backward together."""


@functools.cache
def load(module: str) -> tuple[Callable[..., Any] | None, str | None]:
    """`flash_attn_varlen_func` of a module, or why there is none."""
    try:
        return importlib.import_module(module).flash_attn_varlen_func, None
    except ModuleNotFoundError as error:
        own = error.name is not None and module.startswith(error.name)
        return None, "not installed" if own else f"its import fails: {error}"
    except (ImportError, OSError, RuntimeError, AttributeError) as error:  # built for another torch or CUDA
        return None, f"its import fails: {error}"


def installed() -> list[Library]:
    """The libraries that import, the newest first."""
    return [library for library in LIBRARIES if load(library.module)[0] is not None]


def version(library: Library) -> str:
    """The version of an installed library; some modules carry a placeholder, so pip's record comes first."""
    try:
        return importlib.metadata.version(library.distribution)
    except importlib.metadata.PackageNotFoundError:
        return getattr(sys.modules[library.module], "__version__", "version unknown")


def fitting(major: int, head_dim: int) -> Library | None:
    """The newest installed library for a GPU's major compute capability and a head width."""
    for library in installed():
        if major in library.architectures and head_dim <= library.max_head_dim:
            return library
    return None


def call(module: str, *, window: tuple[int, int], **arguments: Any) -> Any:
    """Call a library; `window` is how many earlier and later keys a query sees, -1 for all."""
    library = next(library for library in LIBRARIES if library.module == module)
    function, reason = load(module)
    assert function is not None, reason
    sides = tuple(library.no_limit if side < 0 else side for side in window)
    out = function(window_size=sides, **arguments)
    return out[0] if isinstance(out, tuple) else out
