"""Which modules are the layers: a list of modules, each handing a residual state to the next."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from depthkit.registry import nearest
from depthkit.utilization.structure.events import Event

LIST_NAMES = ("layers", "h", "blocks")


def module_lists(model: nn.Module) -> dict[str, list[nn.Module]]:
    """Every list or sequence of modules by path, none of them inside an entry of another."""
    found: dict[str, list[nn.Module]] = {}
    for path, module in model.named_modules():
        inside = any(path.startswith(f"{outer}.") for outer in found)
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and len(module) and not inside:
            found[path] = list(module)
    return found


def find_layers(model: nn.Module) -> list[nn.Module]:
    """By structure alone: the outermost module list called layers, h or blocks.

    Raises:
        ValueError: none, or several equally near the root; the message names the candidates.
    """
    lists = {path: m for path, m in model.named_modules() if isinstance(m, nn.ModuleList) and len(m)}
    named = [path for path in lists if path.rpartition(".")[2] in LIST_NAMES]
    least = min((path.count(".") for path in named), default=0)
    found = [path for path in named if path.count(".") == least]
    if len(found) != 1:
        raise ValueError(_refusal(model, found or list(lists), "found no single layer list"))
    return list(lists[found[0]])


def layers_by_flow(model: nn.Module, events: list[Event]) -> dict[str, list[nn.Module]]:
    """By data flow: lists whose entries all ran, each reading the state that the one before it returned.

    Where several lists qualify, the one with the config's number of layers wins. Otherwise it is the one that
    ran most, together with those of the same classes: a prelude, a looped core and a coda.

    Returns:
        Path -> entries, in the order of their first call.

    Raises:
        ValueError: none; the message names the candidates.
    """
    lists = module_lists(model)
    chained = {path: runs for path, entries in lists.items() if (runs := _chain(entries, events))}
    if not chained:
        raise ValueError(_refusal(model, list(lists), "found no list of layers that hand a state on"))
    chosen = _narrowed(model, lists, chained)
    return {path: lists[path] for path in sorted(chosen, key=lambda path: chained[path][0].began)}


def _narrowed(
    model: nn.Module, lists: dict[str, list[nn.Module]], chained: dict[str, list[Event]]
) -> list[str]:
    depth: Any = getattr(getattr(model, "config", None), "num_hidden_layers", None)
    exact = [path for path in chained if len(lists[path]) == depth]
    if len(exact) == 1:
        return exact
    main = max(chained, key=lambda path: (len(chained[path]), path.rpartition(".")[2] in LIST_NAMES))
    return [path for path in chained if _kinds(lists[path]) <= _kinds(lists[main])]


def _kinds(entries: list[nn.Module]) -> set[type]:
    return {type(entry) for entry in entries}


def _chain(entries: list[nn.Module], events: list[Event]) -> list[Event]:
    """The entries' calls, when together they look like layers; otherwise nothing."""
    index = {entry: i for i, entry in enumerate(entries)}
    runs = sorted((e for e in events if e.module in index), key=lambda event: event.began)
    if {event.module for event in runs} != set(entries) or any(residual(run) is None for run in runs):
        return []
    for first, second in pairwise(runs):
        follows = index[second.module] == index[first.module] + 1
        if follows and not torch.equal(returned(first), state_read(second)):
            return []
    return runs


def residual(event: Event) -> Tensor | None:
    """The state [B, T, D] a layer-like call read, when what it returned has the same shape."""
    if not event.wrote or event.wrote[0].ndim != 3:
        return None
    alike = [t for t in event.read if t.shape == event.wrote[0].shape and t.is_floating_point()]
    return alike[0] if alike else None


def state_read(event: Event) -> Tensor:
    """The state that a layer read."""
    state = residual(event)
    assert state is not None, event.path
    return state


def returned(event: Event) -> Tensor:
    """The state that a layer returned."""
    return event.wrote[0]


def layers_at(
    model: nn.Module, layers: str | nn.Module | Sequence[str | nn.Module]
) -> dict[str, list[nn.Module]]:
    """Given layers by path: a list stands for its entries, any other module for itself.

    Raises:
        ValueError: no such module.
    """
    names = {module: path for path, module in model.named_modules()}
    found: dict[str, list[nn.Module]] = {}
    for item in [layers] if isinstance(layers, (str, nn.Module)) else layers:
        module = module_at(model, item, "layers") if isinstance(item, str) else item
        path = names.get(module, f"<{len(found)}>")
        found[path] = list(module) if isinstance(module, (nn.ModuleList, nn.Sequential)) else [module]
    return found


def stored(lists: dict[str, list[nn.Module]]) -> list[nn.Module]:
    """The layers of several lists in one."""
    return [layer for entries in lists.values() for layer in entries]


def module_at(model: nn.Module, path: str, what: str) -> nn.Module:
    """The module at a dotted path.

    Raises:
        ValueError: there is none; the message offers the nearest path.
    """
    names = dict(model.named_modules())
    if path not in names or not path:
        close = nearest(path, names)
        hint = f"; did you mean {close!r}?" if close else f"; there are {', '.join(_children(model))}"
        raise ValueError(f"subject.{what}: {type(model).__name__} has no module {path!r}{hint}")
    return names[path]


def _children(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_children()]


def _refusal(model: nn.Module, paths: list[str], what: str) -> str:
    candidates = ", ".join(paths) or "no module list at all"
    return f"{type(model).__name__}: {what} ({candidates}): pass layers=, in eval.py subject.layers=PATH"
