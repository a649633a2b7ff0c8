"""Rungs in processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import Any

from pydantic import Field

from depthkit.ladder.launchers.base import Handle, Launcher
from depthkit.ladder.registries import LAUNCHERS
from depthkit.ladder.rung import Task, run_rung
from depthkit.ladder.state import State

PATIENCE = 120.0
"""Seconds that a worker has to finish its step and write its checkpoint."""


class _Running(Handle):
    def __init__(self, future: Future[State]):
        self.future = future

    def poll(self) -> State | str | None:
        """None while it runs."""
        if not self.future.done():
            return None
        error = self.future.exception()
        if isinstance(error, BrokenProcessPool):
            return "its process died, perhaps out of memory"
        return self.future.result() if error is None else f"{type(error).__name__}: {error}"


@LAUNCHERS.register("local")
class Local(Launcher):
    """In processes of this machine, each with its own share of the cores.

    Every process is a pool of its own, so that one that dies takes no other rung along; it is kept for the
    next rung, because importing takes seconds.
    """

    class Config(Launcher.Config):
        """How many processes."""

        workers: int | None = Field(None, ge=1)
        """Processes at a time; null is one a core."""
        threads: int | None = Field(None, ge=1)
        """CPU threads of each, where a rung's own config leaves them open; null shares the cores out."""

    def __init__(self, config: Any, folder: Path, job: Callable[[Task], State] = run_rung):
        super().__init__(config, folder, job)
        self._pools: list[tuple[ProcessPoolExecutor, Future[State]]] = []

    @staticmethod
    def workers(config: Any) -> int:
        """Processes."""
        return config.workers or _cores()

    @property
    def threads(self) -> int:
        """The cores shared out among the processes."""
        return self.config.threads or max(1, _cores() // self.capacity)

    def submit(self, tasks: Sequence[Task]) -> list[Handle]:
        """Give each to a process that has nothing to do."""
        handles: list[Handle] = []
        for task in tasks:
            pool = self._idle_pool()
            future = pool.submit(self.job, task)
            self._pools.append((pool, future))
            handles.append(_Running(future))
        return handles

    def _idle_pool(self) -> ProcessPoolExecutor:
        for item in [item for item in self._pools if item[1].done()]:
            self._pools.remove(item)
            if not isinstance(item[1].exception(), BrokenProcessPool):
                return item[0]
        # Forking a process that has used threads can hang; spawned workers import what they need once.
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(1, mp_context=context, initializer=_prepare)

    def stop(self) -> None:
        """Send every process SIGTERM, which it answers with a checkpoint after the step it is in."""
        futures = [future for _, future in self._pools if not future.done()]
        for worker in multiprocessing.active_children():
            worker.terminate()
        wait(futures, timeout=PATIENCE)
        self.close()

    def close(self) -> None:
        """End the processes."""
        for pool, _ in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)
        self._pools = []


def _cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _prepare() -> None:
    """In a new worker: Ctrl-C is the launcher's to pass on; when the launcher is gone, save and leave."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.setpgrp()
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        wait_for([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(PATIENCE)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
