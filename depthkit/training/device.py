"""Devices: choosing one, its number format, its peak, its memory, its threads."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import psutil
import torch

from depthkit.training.parallel.world import world

PEAK_BF16 = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "GH200": 989e12,
    "A100": 312e12,
    "A40": 149.7e12,
    "L40S": 362e12,
    "L4": 121e12,
    "RTX 4090": 165.2e12,
    "RTX 3090": 71e12,
    "MI300X": 1307e12,
    "MI250X": 383e12,
}
"""Dense bf16 FLOP/s from the makers' data sheets, by words of the device's name; more specific ones first."""


def choose(device: str) -> torch.device:
    """The device a config asks for; `auto` takes a GPU when there is one, under torchrun the process' own.

    Raises:
        ValueError: `cuda` without a usable GPU.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("train.device: 'cuda', but PyTorch finds no GPU here; allowed: auto, cpu")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    place = world()
    if device == "cuda" and place.size > 1:
        if place.local_rank >= torch.cuda.device_count():
            raise ValueError(
                f"torchrun: process {place.local_rank} of this machine has no GPU; PyTorch finds "
                f"{torch.cuda.device_count()}, so use at most as many processes a machine"
            )
        return torch.device(device, place.local_rank)
    return torch.device(device)


def runs_bf16(precision: str, device: torch.device) -> bool:
    """Whether matrix products run in bf16: as asked, or on GPUs where `precision` is `auto`."""
    return precision == "bf16" or (precision == "auto" and device.type == "cuda")


def name(device: torch.device) -> str:
    """The device as people call it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def peak_flops(device: torch.device, bf16: bool) -> float | None:
    """Peak FLOP/s of matrix products, or None when it is not known."""
    if device.type != "cuda" or not bf16:
        return None
    found = [peak for part, peak in PEAK_BF16.items() if re.search(rf"\b{part}\b", name(device))]
    return found[0] if found else None


def memory_bytes(device: torch.device) -> int:
    """GPU: most memory that tensors have held at once. CPU: what the process holds now."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return psutil.Process().memory_info().rss


@contextlib.contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Run the block on `count` CPU threads (None: as they are), then put the old count back."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
