"""The tensors of a checkpoint, from one file a part or from the shards of many ranks, into any layout."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from depthkit.training import tensors

Layout = Callable[[str], Tensor | None]
"""Name -> a tensor; where that is sharded (`DTensor`), only this rank's shard is wanted."""


def load(folder: Path, part: str, layout: Layout = lambda name: None) -> dict[str, Tensor]:
    """All tensors of a part: whole, on the CPU, or laid out as the tensor of the same name and shape.

    Args:
        folder: a checkpoint.
        part: the file, such as `model.safetensors`; in a sharded checkpoint `model/` stands in its place.
        layout: tensors to lay out alike.
    """
    shards = folder / Path(part).stem
    if shards.is_dir():
        return _from_shards(shards, layout)
    found = tensors.load(folder / part)
    return {name: _laid_out(tensor, layout(name)) for name, tensor in found.items()}


def _laid_out(tensor: Tensor, layout: Tensor | None) -> Tensor:
    """A whole tensor, or this rank's shard of it."""
    if not _sharded(layout) or layout is None or layout.shape != tensor.shape:
        return tensor
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements = layout.device_mesh, layout.placements  # type: ignore[attr-defined]
    shape, start = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    own = tensor[tuple(slice(o, o + n) for o, n in zip(start, shape, strict=True))]
    local = own.clone().to(layout.device)
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def _from_shards(folder: Path, layout: Layout) -> dict[str, Tensor]:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    held: Any = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    found = {name: _empty(entry, layout(name)) for name, entry in held.items()}
    # Every rank knows what it wants and where that is: no need to talk, nor to be warned of it.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.load(found, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
    return found


def _empty(entry: Any, layout: Tensor | None) -> Tensor:
    if _sharded(layout) and layout is not None and layout.shape == entry.size:
        return torch.zeros_like(layout)
    return torch.zeros(entry.size, dtype=entry.properties.dtype)


def _sharded(tensor: Tensor | None) -> bool:
    return hasattr(tensor, "device_mesh")
