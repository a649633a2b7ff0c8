"""One compiled block function a model, shared by all its layers and visits."""

from __future__ import annotations

from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from depthkit.model.block import Block

ON_CPUS: dict[str, Any] = {"cpp_wrapper": True, "size_asserts": False}
"""Inductor's options on CPUs: what calls the kernels is compiled too, and does not check its inputs, whose
shapes are guarded already. A thin layer takes a fifth less time."""


def compile_blocks(layers: nn.ModuleList, backend: Any = "inductor") -> None:
    """Compile the forward of `layers` in place; hooks and `observe` stay outside the compiled region.

    Dynamo's recompile limit counts per code object and process-wide, so the eighth model of a ladder would
    reach it, which is an error with `fullgraph`. Each model therefore gets a copy of the function with a code
    object of its own.
    """
    source = Block.forward
    code = source.__code__.replace(co_name=source.__code__.co_name)
    own = FunctionType(code, source.__globals__, source.__name__, source.__defaults__, source.__closure__)
    fuses = backend == "inductor"
    on_cpu = all(parameter.device.type == "cpu" for parameter in layers.parameters())
    options = ON_CPUS if fuses and on_cpu else None
    compiled = torch.compile(own, backend=backend, fullgraph=True, options=options)
    for layer in layers:
        layer.forward = MethodType(compiled, layer)
        site: Any = layer.mixer
        site.branch.compiled = fuses
