"""What this machine can run: torch, devices, and which kernels are active and why the others are not."""

from __future__ import annotations

import platform
import sys
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from depthkit.kernels import attention, experts
from depthkit.kernels.attention import Request, flash_library


class Row(NamedTuple):
    """One part, its state in a word or two, and what there is to say about it."""

    name: str
    state: str
    detail: str


SITUATIONS = {
    "training": {"grad": True},
    "training on packed documents": {"grad": True, "packed": True},
    "decoding": {"queries": 1},
}
"""What `auto` is asked about, with the options of `ask`."""


def ask(
    device: torch.device, queries: int = 2048, keys: int = 2048, packed: bool = False, grad: bool = False
) -> Request:
    """A request of common size: heads of 64, bf16 on a GPU and fp32 elsewhere."""
    documents = torch.zeros(1, keys, dtype=torch.int64, device=device) if packed else None
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return Request(1, queries, keys, 64, device, dtype, documents=documents, grad=grad)


def default_device() -> torch.device:
    """The first GPU, or the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def machine_rows() -> list[Row]:
    """Python, torch, and every device."""
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
    rows = [
        Row("python", platform.python_version(), sys.executable),
        Row("torch", torch.__version__, f"built with {build}"),
        Row("cpu", f"{torch.get_num_threads()} threads", torch.backends.cpu.get_cpu_capability()),
    ]
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        size = f"{gpu.total_memory / 2**30:.0f} GiB, compute capability {gpu.major}.{gpu.minor}"
        rows.append(Row(f"cuda:{index}", gpu.name, size))
    return rows


def attention_rows(device: torch.device) -> list[Row]:
    """Every attention backend: what `auto` picks to train plainly, what else could, and why not."""
    forward = {verdict.name: verdict.usable for verdict in attention.survey(ask(device))}
    rows = []
    for name, usable, reason in attention.survey(ask(device, grad=True)):
        state = "active" if reason is None else "available" if usable else "unavailable"
        if not usable and forward[name]:
            state = "forward only"
        rows.append(Row(name, state, reason or "what auto picks"))
    return rows


def library_rows() -> list[Row]:
    """Every release line of flash-attn: its version, or why it is not there."""
    rows = []
    for library in flash_library.LIBRARIES:
        function, reason = flash_library.load(library.module)
        detail = flash_library.version(library) if function else reason
        rows.append(Row(library.label, "found" if function else "absent", detail or ""))
    return rows


def picks(device: torch.device) -> dict[str, str]:
    """What `auto` picks in each situation."""
    found = {}
    for situation, options in SITUATIONS.items():
        verdicts = attention.survey(ask(device, **options))  # type: ignore[arg-type]
        found[situation] = next(verdict.name for verdict in verdicts if verdict.reason is None)
    return found


def show(console: Console) -> None:
    """Print all of it."""
    device = default_device()
    parts = {
        "machine": machine_rows(),
        f"attention on {device}": attention_rows(device),
        "flash-attn": library_rows(),
        "experts": [Row(*row) for row in experts.status()],
    }
    for title, rows in parts.items():
        table = Table(title=title, title_justify="left", title_style="bold", box=None, show_header=False)
        for row in rows:
            table.add_row(*row)
        console.print(table, "")
    choices = "; ".join(f"{name} for {situation}" for situation, name in picks(device).items())
    console.print(f"attention backend auto is {choices}")
