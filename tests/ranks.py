"""Run a function in several processes that are ranks of one gloo group."""

import time

import torch
import torch.distributed as dist
from torch import multiprocessing


def run_in_ranks(function, size, folder, seconds=240):
    """Call `function()` on every rank of a default group of `size`; a failing or hanging one fails the test."""
    started = time.monotonic()
    context = multiprocessing.spawn(_start, (function, size, str(folder / "store")), size, join=False)
    try:
        while not context.join(timeout=1):
            assert time.monotonic() - started < seconds, f"ranks still run after {seconds} s"
    finally:
        for process in context.processes:
            process.kill()


def _start(rank, function, size, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    function()
    dist.barrier()
    dist.destroy_process_group()
