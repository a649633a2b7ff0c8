"""FlashAttention by the flash-attn package: every document is a sequence of its own.

Source: arXiv:2205.14135, arXiv:2307.08691. Not yet run on a GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from depthkit.kernels.attention import flash_library
from depthkit.kernels.attention.base import ATTENTION, Backend, Request
from depthkit.kernels.attention.flash_op import flash_varlen
from depthkit.kernels.attention.packing import Packed, packed


@ATTENTION.register("flash")
class Flash(Backend):
    """The flash-attn package, version 4, 3 or 2, whichever fits the GPU; bf16 and fp16 on CUDA."""

    priority = 30

    @staticmethod
    def available() -> str | None:
        """No GPU, or no flash-attn."""
        if not torch.cuda.is_available():
            return "it needs a CUDA device, and there is none"
        if not flash_library.installed():
            reasons = (f"{lib.label}: {flash_library.load(lib.module)[1]}" for lib in flash_library.LIBRARIES)
            return "no flash-attn can be imported (" + ", ".join(reasons) + ")"
        return None

    @staticmethod
    def refuses(request: Request) -> str | None:
        """Another device, fp32, or a head width or GPU that no installed version supports."""
        if request.device.type != "cuda":
            return f"it runs on cuda, not on {request.device.type}"
        if request.dtype not in (torch.bfloat16, torch.float16):
            return f"it computes in bf16 or fp16, not in {str(request.dtype).removeprefix('torch.')}"
        if request.head_dim % 8:
            return f"it needs a head_dim that is a multiple of 8, not {request.head_dim}"
        major, _ = torch.cuda.get_device_capability(request.device)
        if flash_library.fitting(major, request.head_dim) is None:
            labels = ", ".join(library.label for library in flash_library.installed())
            return f"{labels} does not support head_dim {request.head_dim} on compute capability {major}.x"
        return None

    @staticmethod
    def prepare(request: Request) -> Packed:
        """The runs of the batch."""
        major, _ = torch.cuda.get_device_capability(request.device)
        library = flash_library.fitting(major, request.head_dim)
        assert library is not None, "refused before"
        return packed(request, library.module)

    @staticmethod
    def attend(q: Tensor, k: Tensor, v: Tensor, pattern: Packed, scale: float) -> Tensor:
        """See `Backend.attend`."""
        # Under autocast qk-norm leaves fp32; the kernels want one dtype, and heads after positions.
        queries, keys, values = (x.to(v.dtype).transpose(1, 2).flatten(0, 1) for x in (q, k, v))
        y = flash_varlen(queries, keys, values, pattern, scale)
        return y.unflatten(0, (q.shape[0], q.shape[2])).transpose(1, 2)
