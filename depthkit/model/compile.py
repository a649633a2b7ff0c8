"""One compiled block function a model, shared by all its layers and visits."""

from __future__ import annotations

from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from depthkit.model.block import Block


def compile_blocks(layers: nn.ModuleList, backend: Any = "inductor") -> None:
    """Compile the forward of `layers` in place; hooks and `observe` stay outside the compiled region.

    Dynamo's recompile limit counts per code object and process-wide, so the eighth model of a ladder would
    fall back to eager in silence. Each model therefore gets a copy of the function with a code object of its
    own, and the limit is an error.
    """
    source = Block.forward
    code = source.__code__.replace(co_name=source.__code__.co_name)
    own = FunctionType(code, source.__globals__, source.__name__, source.__defaults__, source.__closure__)
    compiled = torch.compile(own, backend=backend, fullgraph=True)
    for layer in layers:
        layer.forward = MethodType(_strict(compiled), layer)


def _strict(compiled: Any) -> Any:
    def forward(*args: Any, **kwargs: Any) -> Any:
        with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
            return compiled(*args, **kwargs)

    return forward
