"""Which experts the tokens of one visit go to.

depthkit's own models say it. Of any other model it is what the router that `structure` found returns while
the visit runs once more: expert indices are told by their integer type, logits by their width.

Shapes: B sequences, T positions, E experts, k experts a token, N = B T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from depthkit.model.block import Block
from depthkit.utilization.probe import Context
from depthkit.utilization.replay import Trace
from depthkit.utilization.structure.inside import INTEGERS, Router
from depthkit.utilization.watching import tensors, watching

TOLERANCE = 1e-3
SHORT_TOLERANCE = 2e-2
"""How far weights may be from proportional to scores: in fp32, and where the model computes in 16 bits."""
SCORES: tuple[Callable[[Tensor], Tensor], ...] = (lambda z: z.softmax(-1), torch.sigmoid)
CHOICES = ("num_experts_per_tok", "moe_k", "moe_top_k")
"""Names of k in configs of models whose router returns nothing but logits."""
DENSE = "the layer has no experts"
UNKNOWN = "the layer seems to have experts, but no module that chooses among them was found"


class Routing(NamedTuple):
    """The choices of one visit.

    Attributes:
        experts: `[B, T, k]` int64.
        num_experts: E.
        shares: `[B, T, E]` the router's scores, summing to 1 over experts; None when they cannot be told.
    """

    experts: Tensor
    num_experts: int
    shares: Tensor | None


def routing(context: Context, trace: Trace, visit: int, scored: bool = True) -> Routing | str:
    """The routing of a visit, or the reason why there is none to see (`DENSE`: there are no experts).

    A visit with experts is run once more, unless the choices of depthkit's own models are enough (`scored`
    false), which the recording has.
    """
    layer = trace.path.module(visit)
    if isinstance(layer, Block):
        return _own(context, trace, visit, layer, scored)
    model, structure = context.subject.model, context.subject.structure
    if structure is None:
        return "the inside of the layers of a model with its own read_out is not looked at"
    router = structure.inside[context.places[visit].layer].router
    if router is None:
        return UNKNOWN if _has_experts(layer) else DENSE
    context.count(len(trace.batch), 1)
    return _watched(trace, visit, router, getattr(model, "config", None))


def _own(context: Context, trace: Trace, visit: int, layer: Block, scored: bool) -> Routing | str:
    aux: Any = trace.aux[visit]
    ffn: Any = layer.ffn.branch
    if "experts" not in aux:
        return DENSE
    found = Routing(aux["experts"], len(aux["load"]), None)
    if not scored or not hasattr(ffn, "routed"):
        return found
    calls: list[tuple[Any, ...]] = []
    context.count(len(trace.batch), 1)
    with watching(layer, [ffn], lambda args, kwargs, output: calls.append(args)):
        trace.path.run(visit, trace.entered[visit])
    h, _, bank = calls[0]
    return found._replace(shares=ffn.routed(h, bank).shares)


def _has_experts(layer: nn.Module) -> bool:
    """Whether a layer holds stacked matrices, or a list of modules that are alike."""
    lists = [module for module in layer.modules() if isinstance(module, nn.ModuleList)]
    listed = any(len(modules) > 1 and len({type(m) for m in modules}) == 1 for modules in lists)
    return listed or any(parameter.ndim == 3 for parameter in layer.parameters())


def _watched(trace: Trace, visit: int, router: Router, config: Any) -> Routing | str:
    layer, outputs = trace.path.module(visit), []
    module = layer.get_submodule(router.path)
    with watching(layer, [module], lambda args, kwargs, output: outputs.append(tensors(output))):
        trace.path.run(visit, trace.entered[visit])
    if len(outputs) != 1:
        return f"router {router.path} ran {len(outputs)} times in one visit"
    return understood(outputs[0], trace.batch.mask, router, _top_k(config))


def _top_k(config: Any) -> int | None:
    return next((k for name in CHOICES if isinstance(k := getattr(config, name, None), int)), None)


def understood(returned: list[Tensor], mask: Tensor, router: Router, top_k: int | None) -> Routing | str:
    """What a router's output says.

    Args:
        returned: its tensors, in order.
        mask: `[B, T]`, the tokens that are no padding.
        router: as `structure` found it.
        top_k: k as the config says, for a router that returns nothing but logits.
    """
    batch, time = mask.shape
    fits = [t.reshape(batch, time, -1) for t in returned if t.numel() and t.numel() % mask.numel() == 0]
    indices = [t for t in fits if t.dtype in INTEGERS]
    wide = [t for t in fits if t.is_floating_point() and t.shape[-1] == router.num_experts]
    if indices:
        experts = indices[0].long()
        narrow = [t for t in fits if t.is_floating_point() and t.shape[-1] == experts.shape[-1]]
        return Routing(experts, router.num_experts, _shares(experts, wide, narrow, mask))
    if not wide or top_k is None:
        return f"router {router.path} returned neither expert indices nor logits"
    shares = wide[0].float().softmax(-1)
    return Routing(shares.topk(top_k, dim=-1).indices, router.num_experts, shares)


def _shares(experts: Tensor, wide: list[Tensor], narrow: list[Tensor], mask: Tensor) -> Tensor | None:
    """Scores of which the weights of the chosen experts are a multiple, normalised."""
    for logits in wide:
        for weights in (w for w in narrow if w is not logits):
            for score in SCORES:
                scores = score(logits.float())
                if _proportional(weights, scores.gather(-1, experts), mask):
                    return scores / scores.sum(-1, keepdim=True)
    return None


def _proportional(weights: Tensor, scores: Tensor, mask: Tensor) -> bool:
    """Whether weights `[B, T, k]` are scores times a number a token, or of one expert, times one number."""
    ratio = (weights.float() / scores)[mask]
    if not len(ratio):
        return True
    ratio = ratio if ratio.shape[-1] > 1 else ratio.T
    limit = TOLERANCE if weights.dtype.itemsize >= 4 else SHORT_TOLERANCE
    return bool((ratio.amax(-1) - ratio.amin(-1) <= limit * ratio.abs().amax(-1)).all())
