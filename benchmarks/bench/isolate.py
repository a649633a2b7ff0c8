"""Work in a process of its own, so that memory, compiled code and threads of one measurement end with it."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def isolated(function: Callable[..., T], *args: Any) -> T:
    """`function(*args)` in a fresh process with one thread; all of it is pickled, and errors come back.

    Says on stderr that it has begun: what follows can take minutes.
    """
    shown = ", ".join(str(arg) for arg in args)
    print(f"{time.strftime('%H:%M:%S')} {function.__module__}.{function.__name__}({shown})", file=sys.stderr)
    # Forking a process that has used threads can hang.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        return pool.submit(function, *args).result()
