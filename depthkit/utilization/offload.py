"""Recorded states that do not fit where the model computes.

Beyond a budget they go to host memory, from which they are fetched one at a time (models on a GPU), or into a
temporary file that is mapped into memory, so that the system reads and writes it as it sees fit (models on
the CPU). The file has no name and is gone with the last tensor in it. Values are the same, bit for bit.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, overload

import psutil
import torch
from torch import Tensor

from depthkit.utilization.nested import mapped
from depthkit.utilization.record import Recording

ALIGNMENT = 64
"""Bytes to which tensors in a file are aligned, as torch aligns its own."""


class Kept(NamedTuple):
    """What a `Trace` holds of a recording, wherever it is."""

    entered: Sequence[Any]
    before: Sequence[Tensor]
    after: Sequence[Tensor]
    final: Tensor


class Offload:
    """Takes in recordings, one micro-batch at a time.

    Args:
        budget: bytes of states that stay; None is half of what is available where the model is.
        device: where the model is.
        processes: how many share the memory of a CPU that is available.
    """

    def __init__(self, budget: int | None, device: torch.device, processes: int = 1):
        sharing = processes if device.type == "cpu" else 1
        self._left = available(device) // (2 * sharing) if budget is None else budget
        self._device = device
        self.moved = 0
        """Bytes that did not stay."""

    def keep(self, seen: Recording) -> Kept:
        """The states of a recording: as they are while there is room, or all of them moved.

        Raises:
            ValueError: the temporary file does not fit on its disk.
        """
        unique = _unique([*seen.entered, *seen.before, *seen.after])
        size = sum(tensor.nbytes for tensor in unique.values())
        if size <= self._left:
            self._left -= size
            return Kept(seen.entered, seen.before, seen.after, seen.final)
        self._left, self.moved = 0, self.moved + size
        if self._device.type == "cpu":
            copies = dict(zip(unique, on_disk(list(unique.values())), strict=True))
            return _kept(seen, copies, copies.get(id(seen.final), seen.final), lambda values: values)
        copies = {key: tensor.cpu() for key, tensor in unique.items()}
        return _kept(seen, copies, seen.final, lambda values: Fetched(values, self._device))


class Fetched(Sequence[Any]):
    """Values in host memory; the one that is asked for is copied to a device."""

    def __init__(self, values: list[Any], device: torch.device):
        self._values, self._device = values, device

    def __len__(self) -> int:
        return len(self._values)

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self._fetched(value) for value in self._values[index]]
        return self._fetched(self._values[index])

    def _fetched(self, value: Any) -> Any:
        return mapped(lambda tensor: tensor.to(self._device), value)


def available(device: torch.device) -> int:
    """Bytes that can be had where a model is."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available


def on_disk(tensors: list[Tensor]) -> list[Tensor]:
    """Copies of CPU tensors in one mapped temporary file, in `tempfile`'s folder.

    Raises:
        ValueError: there is no room for it.
    """
    starts, size = [], 0
    for tensor in tensors:
        starts.append(size)
        size += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    with tempfile.TemporaryFile(prefix="depthkit-") as file:
        _reserve(file.fileno(), max(size, 1))
        memory = mmap.mmap(file.fileno(), max(size, 1))
    bytes_of_file = torch.frombuffer(memory, dtype=torch.uint8)
    copies = [_copied(tensor, bytes_of_file[start:]) for start, tensor in zip(starts, tensors, strict=True)]
    if hasattr(mmap, "MADV_DONTNEED"):
        memory.madvise(mmap.MADV_DONTNEED)  # what was written leaves the process, not the file
    return copies


def _copied(tensor: Tensor, place: Tensor) -> Tensor:
    """A copy at the beginning of `place`, with the strides that `clone` would give it."""
    like = torch.empty_like(tensor, device="meta")
    copy = place[: tensor.nbytes].view(tensor.dtype).as_strided(like.size(), like.stride())
    return copy.copy_(tensor)


def _reserve(file: int, size: int) -> None:
    """Make room now, since a full disk would end the process when the mapped file is written."""
    reserve: Callable[[int, int, int], None] | None = getattr(os, "posix_fallocate", None)
    try:
        if reserve is not None:
            reserve(file, 0, size)
        else:
            os.truncate(file, size)
    except OSError as error:
        raise ValueError(
            f"replay.offload_bytes: {size} bytes of recorded states do not fit into a file in "
            f"{tempfile.gettempdir()} ({error.strerror}); set TMPDIR, raise replay.offload_bytes or read "
            "fewer sequences"
        ) from None


def _unique(values: list[Any]) -> dict[int, Tensor]:
    """All tensors in nested tuples by identity."""
    found: dict[int, Tensor] = {}
    mapped(lambda tensor: found.setdefault(id(tensor), tensor), tuple(values))
    return found


def _kept(
    seen: Recording, copies: dict[int, Tensor], final: Tensor, held: Callable[[list[Any]], Sequence[Any]]
) -> Kept:
    entered, before, after = (
        held([mapped(lambda tensor: copies[id(tensor)], value) for value in values])
        for values in (seen.entered, seen.before, seen.after)
    )
    return Kept(entered, before, after, final)
