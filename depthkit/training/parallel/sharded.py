"""Checkpoints that every rank writes its shards of, while training goes on.

checkpoints/step_00000060/{model/shard-*.safetensors, optim/shard-*.safetensors, state.json, manifest.json}
"""

from __future__ import annotations

import errno
import os
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch.distributed as dist

from depthkit.training import checkpoint
from depthkit.training.parallel.ranks import Ranks
from depthkit.training.parallel.writing import Checkpoints, Snapshot


class ShardedCheckpoints(Checkpoints):
    """Writes one checkpoint at a time in the background; it counts as the latest once all of it is there."""

    def __init__(self, ranks: Ranks):
        super().__init__(ranks)
        self._groups: dict[str, Any] = {}
        self._pending: Future[None] | None = None

    def begin(self, snapshot: Snapshot) -> None:
        """Copy the tensors and start to write them; all ranks call it.

        Raises:
            OSError: the checkpoint before could not be written, or this one not begun.
        """
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

        self.finish()
        parts = [part_folder(name) for name in snapshot.parts]
        folder = self.ranks.first(lambda: checkpoint.begin(snapshot.root, snapshot.step, parts))
        writing = []
        for name, part in snapshot.parts.items():
            if name not in self._groups:  # of its own, so that it never meets what training has to say
                self._groups[name] = dist.new_group(backend="gloo")
            writer = HuggingFaceStorageWriter(str(folder / part_folder(name)), save_distributed=True)
            detached = {key: tensor.detach() for key, tensor in part.items()}
            writing.append(dcp.async_save(detached, storage_writer=writer, process_group=self._groups[name]))
        pool = ThreadPoolExecutor(1, "checkpoint")
        self._pending = pool.submit(self._complete, writing, folder, snapshot)
        pool.shutdown(wait=False)

    def _complete(self, writing: list[Any], folder: Path, snapshot: Snapshot) -> None:
        for future in writing:
            future.result()
        if self.ranks.is_first:
            checkpoint.complete(folder, snapshot.root, snapshot.step, snapshot.state, snapshot.keep)

    def finish(self) -> None:
        """Wait until the checkpoint that was begun is complete, on every rank.

        Raises:
            OSError: it could not be written.
        """
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        # Not in a collective: a rank that fails must not wait for others that never come.
        try:
            pending.result()
        except dist.checkpoint.CheckpointException as error:
            raise _disk_error(error) from error

    def close(self) -> None:
        """Wait for what is being written, however it ends."""
        if self._pending is not None:
            wait([self._pending])


def part_folder(name: str) -> str:
    """The folder that stands for a file: `model` for `model.safetensors`."""
    return Path(name).stem


def _disk_error(error: Any) -> OSError:
    """What the operating system said, which the library hides among what all ranks had to say."""
    for found, _ in error.failures.values():
        if isinstance(found, OSError):
            return found
    code = errno.ENOSPC if f"os error {errno.ENOSPC}" in str(error) else errno.EIO
    return OSError(code, os.strerror(code))
