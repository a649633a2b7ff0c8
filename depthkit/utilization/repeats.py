"""Which arguments of a recorded layer call go with the batch.

Nothing is guessed from shapes: the model runs once on every sequence twice, and what an argument then is says
whether it is the same for any batch, or one copy after another.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)
SHARED, REPEATED, VALUE = "shared", "repeated", "value"
"""A tensor that is the same for any batch, one that is repeated with it, and what is no tensor."""


class UnknownArgument(ValueError):
    """An argument of which it is not known how it goes with the batch."""


def learn(value: Any, twice: Any, where: str) -> Any:
    """How `value` goes with the batch, in its nesting; `twice` is what it is with every sequence twice.

    Raises:
        UnknownArgument: neither the same nor repeated; `where` is its name.
    """
    if isinstance(value, Tensor) and isinstance(twice, Tensor):
        if torch.equal(value, twice):
            return SHARED
        if value.ndim and torch.equal(torch.cat([value, value]), twice):
            return REPEATED
    elif isinstance(value, (tuple, list)) and type(value) is type(twice) and len(value) == len(twice):
        pairs = enumerate(zip(value, twice, strict=True))
        return [learn(*pair, f"{where}[{index}]") for index, pair in pairs]
    elif isinstance(value, dict) and isinstance(twice, dict) and value.keys() == twice.keys():
        return {name: learn(value[name], twice[name], f"{where} {name}".strip()) for name in value}
    elif isinstance(value, PLAIN) and value == twice:
        return VALUE
    raise UnknownArgument(f"it is not known how argument {where} ({_shown(value)}) goes with the batch")


def repeat(value: Any, rule: Any, count: int, made: dict[int, Tensor]) -> Any:
    """`value` for `count` copies of the batch, by what was learned of it.

    `made` remembers what was repeated by the identity of the original: layers share masks.

    Raises:
        UnknownArgument: it has another form than what was learned from.
    """
    if isinstance(rule, list) and isinstance(value, (tuple, list)) and len(rule) == len(value):
        items = [repeat(*pair, count, made) for pair in zip(value, rule, strict=True)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(rule, dict) and isinstance(value, dict) and rule.keys() == value.keys():
        return {name: repeat(value[name], rule[name], count, made) for name in value}
    if isinstance(value, Tensor) and rule in (SHARED, REPEATED):
        return value if rule == SHARED else _copies(value, count, made)
    if isinstance(value, PLAIN) and rule == VALUE:
        return value
    raise UnknownArgument(f"an argument ({_shown(value)}) differs in form between micro-batches")


def _copies(value: Tensor, count: int, made: dict[int, Tensor]) -> Tensor:
    if id(value) not in made:
        made[id(value)] = torch.cat([value] * count)
    return made[id(value)]


def _shown(value: Any) -> str:
    return f"tensor {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
