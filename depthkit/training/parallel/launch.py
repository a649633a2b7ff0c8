"""Joining the processes that torchrun started, and leaving them together."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch
import torch.distributed as dist

from depthkit.training.parallel.ranks import ALONE, Group, Ranks
from depthkit.training.parallel.world import ToldElsewhere, leave_later, world

FAILED, RUNS = "depthkit/failed", "depthkit/runs"
"""Keys of the store: of each run, how many ranks have failed; of each rank, how many runs it has begun."""

NO_WRITES = "FSDP2-wrapped module .* returned a view"
"""A warning about writing into what modules return, which nothing here does."""


@contextlib.contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """The ranks of this run, for as long as the block lasts; one process alone needs no group.

    A group that is already there is used and left as it is. Errors of a user's making are reported by the
    first rank that meets one; the others leave in the same way as soon as they notice.

    Raises:
        ToldElsewhere: another rank has failed.
    """
    if dist.is_initialized():
        with _together():
            yield Group()
        return
    if world().size == 1:
        yield ALONE
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    _start("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    try:
        with _together():
            yield Group()
    finally:
        dist.destroy_process_group()


def _start(backend: str) -> None:
    """Meet the others at torchrun's store.

    Processes that are started again find it as those before have left it, with addresses that are no more: so
    every attempt has names of its own.
    """
    store, rank, size = next(dist.rendezvous("env://"))
    attempt = dist.PrefixStore(f"depthkit/attempt{world().restarts}", store)
    dist.init_process_group(backend, store=attempt, rank=rank, world_size=size)


@contextlib.contextmanager
def _together() -> Iterator[None]:
    store = dist.distributed_c10d._get_default_store()
    failed = f"{FAILED}/{store.add(f'{RUNS}/{dist.get_rank()}', 1)}"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=NO_WRITES)
            if dist.get_rank() > 0:  # the first rank has the same ones
                warnings.simplefilter("ignore")
            yield
    except ToldElsewhere:
        leave_later()
        raise
    except (ValueError, OSError):
        if store.add(failed, 1) > 1:
            leave_later()
            raise ToldElsewhere from None
        raise
    except RuntimeError:
        # A collective that broke off because its partner has left.
        if store.add(failed, 0) > 0:
            leave_later()
            raise ToldElsewhere from None
        raise
