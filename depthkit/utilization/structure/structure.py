"""The structure of a model that says nothing about itself, from one small forward.

Shapes: T positions, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from depthkit.utilization.structure.events import recording
from depthkit.utilization.structure.inside import Inside, look_inside
from depthkit.utilization.structure.layers import (
    layers_at,
    layers_by_flow,
    module_at,
    module_lists,
    residual,
    returned,
    stored,
)
from depthkit.utilization.structure.tail import Composed, OwnTail, find_final_norm, find_head

TIME = 6
"""Positions of the forward that is watched."""
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


@dataclass(frozen=True)
class Structure:
    """What was found, as paths into the model.

    Attributes:
        lists: path -> layers, in the order of their first call.
        final_norm: the module that reads the last state; None when the model has none.
        head: the module that makes logits; None when none of its modules does.
        inside: one entry per layer.
        read_out: raw residual state [.., D] -> logits [.., V].
    """

    lists: dict[str, list[nn.Module]]
    final_norm: str | None
    head: str | None
    inside: list[Inside]
    read_out: Callable[[Tensor], Tensor]

    @property
    def layers(self) -> list[nn.Module]:
        """All stored layers."""
        return stored(self.lists)

    @property
    def no_middle(self) -> str | None:
        """Why nothing can be said about single branches; None when every layer has a state between them."""
        reasons = {i: found.reason for i, found in enumerate(self.inside) if found.reason}
        if not reasons:
            return None
        first = min(reasons)
        return f"{len(reasons)} of {len(self.inside)} layers, such as {first}: {reasons[first]}"

    def describe(self) -> dict[str, Any]:
        """For the report."""
        routers = [found.router for found in self.inside if found.router]
        return {
            "layers": list(self.lists),
            "final_norm": self.final_norm,
            "head": self.head,
            "read_out": "head(final_norm(state))" if isinstance(self.read_out, Composed) else "own code",
            "middle": sorted({found.branches.middle for found in self.inside if found.branches}),
            "no_middle": self.no_middle,
            "router": sorted({router.path for router in routers}),
            "num_experts": max((router.num_experts for router in routers), default=None),
            "top_k": max((router.top_k for router in routers if router.top_k), default=None),
        }


def examine(
    model: nn.Module,
    run: Callable[[Tensor], Any],
    logits: Callable[[Any], Tensor],
    *,
    layers: str | Sequence[str | nn.Module] | None = None,
    final_norm: str | None = None,
    head: str | None = None,
) -> Structure:
    """Find a model's structure.

    Args:
        model: in evaluation mode.
        run: ids [1, T] -> its output.
        logits: that output -> logits [1, T, V].
        layers, final_norm, head: dotted paths that overrule what would be found; with `head`, states are
            read out as head(final_norm(state)) instead of by the model's own code.

    Raises:
        ValueError: no layers, no logits, or a path that fits nothing.
    """
    # Not in inference mode: what is kept for reading out must be usable with gradients later.
    with torch.inference_mode(False), torch.no_grad():
        ids = _ids(model)
        given = layers_at(model, layers) if layers else None
        with recording(_outside(model, given or module_lists(model))) as events:
            output = run(ids)
        lists = given or layers_by_flow(model, events)
        inside = _inside(model, stored(lists), lambda: run(ids))
    visits = sorted((e for e in events if e.module in stored(lists)), key=lambda event: event.ended)
    if not visits:
        raise ValueError(f"subject.layers: none of {', '.join(lists)} was called in a forward")
    after = [e for e in sorted(events, key=lambda e: e.began) if e.began > visits[-1].ended]
    norm = find_final_norm(after, returned(visits[-1]), final_norm)
    width = logits(output).shape[-1]
    return Structure(
        lists=lists,
        final_norm=norm,
        head=head or find_head(after, width),
        inside=inside,
        read_out=_composed(model, norm, head)
        if head
        else OwnTail(run, logits, ids, {visit.module: visit.output for visit in visits}),
    )


def _composed(model: nn.Module, norm: str | None, head: str) -> Composed:
    return Composed(module_at(model, norm, "final_norm") if norm else None, module_at(model, head, "head"))


def _ids(model: nn.Module) -> Tensor:
    """[1, T] different ids that the model knows."""
    known = num_ids(model)
    device = next(model.parameters()).device
    return (torch.arange(1, TIME + 1, device=device) % (known or 2))[None]


def num_ids(model: nn.Module) -> int | None:
    """How many token ids the model knows; None when it does not say."""
    own: Any = getattr(model, "vocab_size", None)
    if isinstance(own, int):
        return own
    embeddings = getattr(model, "get_input_embeddings", lambda: None)()
    return getattr(embeddings, "num_embeddings", None)


def _outside(model: nn.Module, lists: dict[str, list[nn.Module]]) -> list[tuple[str, nn.Module]]:
    """All modules except what is inside the entries of these lists."""
    entries = set(stored(lists))
    inner = tuple(f"{path}." for path, module in model.named_modules() if module in entries)
    return [(path, module) for path, module in model.named_modules() if not path.startswith(inner)]


def _inside(model: nn.Module, layers: list[nn.Module], run: Callable[[], Any]) -> list[Inside]:
    """Watch the inside of one layer at a time, so that little is kept at once."""
    config = getattr(model, "config", None)
    experts = next((n for name in EXPERT_COUNTS if isinstance(n := getattr(config, name, None), int)), None)
    found: dict[nn.Module, Inside] = {}

    def look(layer: nn.Module, *_: Any) -> None:
        *inner, whole = events
        events.clear()
        if layer not in found and residual(whole) is not None:
            found[layer] = look_inside(whole, inner, experts)

    with recording((path, module) for layer in layers for path, module in layer.named_modules()) as events:
        handles = [
            layer.register_forward_hook(look) for layer in dict.fromkeys(layers)
        ]  # after the recording's own
        try:
            run()
        finally:
            for handle in handles:
                handle.remove()
    missing = Inside(None, "it does not hand on one residual state", None)
    return [found.get(layer, missing) for layer in layers]
