"""How many operations a token costs outside attention, counted while a forward runs.

Counted: matrix products by torch's own formulas (a multiply-add is 2), one for every element an elementwise
operation writes or a reduction reads, and `FUSED` for kernels that do several at once. Views, copies and
casts are free, and so is attention, which no regulator, norm or stream changes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from depthkit.model import ModelConfig, Transformer

FUSED = {"_fused_rms_norm": 4, "native_layer_norm": 7, "_softmax": 5, "_log_softmax": 5}
"""Operations an element: rms is square, mean, divide, gain; layer norm also centres and shifts; a softmax is
maximum, difference, exponential, sum, quotient."""

REDUCTIONS = frozenset({"sum", "mean", "amax", "amin", "max", "var", "std", "linalg_vector_norm"})

SHORT, LONG = 8, 16


class _Counter(TorchDispatchMode):
    """Adds up the operations of everything that runs inside."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        packet = func.overloadpacket
        if packet in flop_registry and "attention" not in packet.__name__:
            self.count += flop_registry[packet](*args, **kwargs, out_val=out)
        else:
            self.count += _elementwise(func, packet.__name__, args, out)
        return out


def _elementwise(func: Any, name: str, args: Any, out: Any) -> int:
    if name in FUSED:
        return FUSED[name] * args[0].numel()
    if name in REDUCTIONS:
        return args[0].numel()
    pointwise = torch.Tag.pointwise in func.tags and isinstance(out, Tensor)
    return out.numel() if pointwise else 0


@torch.no_grad()
def operations_per_token(config: ModelConfig) -> float:
    """Operations of a training-mode forward without loss that grow with the number of tokens, a token.

    The difference between windows of 16 and of 8 tokens, so what is done once a forward does not count.
    """
    with torch.device("meta"):
        model = Transformer(config)
    model = model.to_empty(device="cpu").train()
    for parameter in model.parameters():
        parameter.fill_(0.01)
    for module in model.modules():
        if module is not model and hasattr(module, "reset_parameters"):
            module.reset_parameters()  # type: ignore[operator]
    model(_ids(SHORT))  # what is done now and then, such as refreshing a measure of the weights, happens here
    return (_count(model, LONG) - _count(model, SHORT)) / (LONG - SHORT)


def _count(model: Transformer, length: int) -> int:
    with _Counter() as counter:
        model(_ids(length))
    return counter.count


def _ids(length: int) -> Tensor:
    return torch.arange(length)[None]
