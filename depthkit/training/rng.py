"""The states of PyTorch's global generators as plain JSON data."""

from __future__ import annotations

import base64
from typing import Any

import torch
from torch import Tensor


def state() -> dict[str, Any]:
    """States of the CPU generator and of every GPU's."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"cpu": _text(torch.get_rng_state()), "cuda": [_text(one) for one in cuda]}


def restore(saved: dict[str, Any]) -> None:
    """Put back what `state` gave; GPUs that were not there then keep their state."""
    torch.set_rng_state(_tensor(saved["cpu"]))
    for index, one in enumerate(saved["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(_tensor(one), index)


def _text(tensor: Tensor) -> str:
    return base64.b64encode(tensor.numpy().tobytes()).decode()


def _tensor(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
