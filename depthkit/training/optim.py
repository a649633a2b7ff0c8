"""From a model's parameter roles to an optimiser: groups, learning rates, and state as named tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from depthkit.model import Transformer
from depthkit.model.roles import MATRICES
from depthkit.registry import Registry


@runtime_checkable
class Gathers(Protocol):
    """An optimiser that gathers gradients in storage of its own before a step."""

    def gradients(self) -> Sequence[Tensor]:
        """The tensors to clip."""


OPTIMIZERS = Registry("optimizer", "depthkit.training.optimizers")
"""Each kind is built from its config and has `build(groups, lr) -> Optimizer` and `num_states`."""


def parameter_groups(model: Transformer) -> list[dict[str, Any]]:
    """Trainable parameters gathered by what their rules multiply; a tied parameter appears once.

    Returns:
        Groups with `params`, `lr_multiplier`, `eps_multiplier`, `decay_multiplier` (0 outside matrices) and
        `conditional`: whether a step may leave layers out, and `sharded`: whether a rank has only a part.
    """
    conditional = any(not s.shared and s.longest_loops > 1 for s in model.config.segments)
    groups: dict[tuple[float, float, float, Any], list[nn.Parameter]] = {}
    seen: set[int] = set()
    for info in model.named_roles():
        if id(info.parameter) in seen or not info.parameter.requires_grad:
            continue
        seen.add(id(info.parameter))
        decay = info.rule.weight_decay if info.role in MATRICES else 0.0
        # Kernels over many tensors want all of them to be laid out over the same ranks.
        mesh = getattr(info.parameter, "device_mesh", getattr(info.parameter, "expert_mesh", None))
        groups.setdefault((info.rule.lr, info.rule.eps, decay, mesh), []).append(info.parameter)
    return [
        {
            "params": params,
            "lr_multiplier": lr,
            "eps_multiplier": eps,
            "decay_multiplier": decay,
            "conditional": conditional,
            "sharded": mesh is not None,
        }
        for (lr, eps, decay, mesh), params in groups.items()
    ]


def gradients(optimizer: torch.optim.Optimizer) -> Sequence[Tensor]:
    """What the next `step` will follow: in flat tensors where the optimiser has them, else by parameter."""
    if isinstance(optimizer, Gathers):
        return optimizer.gradients()
    return [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give every group `lr` times its own multiplier."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_multiplier"]


def state_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimiser's state as `parameter/field` -> tensor."""
    return {
        f"{name}/{field}": value if value.ndim else value.clone()  # several may share one counter
        for name, parameter in model.named_parameters()
        for field, value in optimizer.state.get(parameter, {}).items()
    }


def load_state_tensors(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor]
) -> None:
    """Put back what `state_tensors` gave.

    Raises:
        ValueError: state of a parameter that the optimiser does not train.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    trained = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    index = {name: number for number, name in enumerate(trained)}
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        name, _, field = key.rpartition("/")
        if name not in index:
            raise ValueError(f"optimiser state of {name!r}, which this model does not train")
        # A copy: tensors read from a file lie at any alignment, and kernels may round differently there.
        state.setdefault(index[name], {})[field] = tensor.clone()
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
