"""AdamW over flat storage: one update for all parameters that share their settings.

A model with hundreds of thin layers has thousands of small tensors, and an update a tensor costs more than
the arithmetic in it. Here the parameters of a group are views of one buffer, as are their gradients, to which
the backward pass adds, and their moments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

ALIGNMENT = 16
"""Elements that every parameter's place in the buffer is a multiple of: 64 bytes in fp32."""

MOMENTS = ("exp_avg", "exp_avg_sq")


class Flat:
    """One group's parameters, gradients and moments, each a buffer of which the single ones are views."""

    def __init__(self, parameters: list[Tensor]):
        self.parameters = parameters
        size = sum(_padded(p.numel()) for p in parameters)
        self.values, self.gradients, *moments = (parameters[0].new_zeros(size) for _ in range(4))
        self.moments = dict(zip(MOMENTS, moments, strict=True))
        self.gradient_views = self._views(self.gradients)
        self.moment_views = [
            dict(zip(MOMENTS, m, strict=True)) for m in zip(*map(self._views, moments), strict=True)
        ]
        for parameter, view in zip(parameters, self._views(self.values), strict=True):
            view.copy_(parameter.detach())
            parameter.data = view

    def _views(self, buffer: Tensor) -> list[Tensor]:
        views, start = [], 0
        for parameter in self.parameters:
            views.append(buffer[start : start + parameter.numel()].view(parameter.shape))
            start += _padded(parameter.numel())
        return views


def _padded(count: int) -> int:
    return math.ceil(count / ALIGNMENT) * ALIGNMENT


class FlatAdamW(torch.optim.AdamW):
    """AdamW whose groups live in flat storage.

    A parameter that takes no part in a backward pass has the gradient 0, where AdamW would leave it alone.
    Gradients that were not added up after `zero_grad` but set by hand are copied; where some are missing the
    others are updated one by one, and from then on their step counts differ.

    Args:
        groups: parameter groups with `lr`, `eps` and `weight_decay`.
        betas: decay rates of the running mean and of the running square.
    """

    def __init__(self, groups: list[dict[str, Any]], betas: tuple[float, float]):
        super().__init__(groups, betas=betas, fused=True)
        with torch.no_grad():
            self._flats = [Flat(group["params"]) for group in self.param_groups]
        buffers = [nn.Parameter(flat.values) for flat in self._flats]
        self._whole = torch.optim.AdamW([{"params": [b]} for b in buffers], betas=betas, fused=True)
        self._steps = [torch.zeros((), device=flat.values.device) for flat in self._flats]
        for flat, buffer, step in zip(self._flats, buffers, self._steps, strict=True):
            buffer.grad = flat.gradients
            self._whole.state[buffer] = {"step": step, **flat.moments}
            for parameter, moments in zip(flat.parameters, flat.moment_views, strict=True):
                self.state[parameter] = {"step": step, **moments}
        self._together = True
        """Whether all parameters have taken the same steps, so that a group shares one counter."""
        self._gathered = False
        self._attached = False

    @torch.no_grad()
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the buffers, and let the backward pass add to them."""
        for flat in self._flats:
            flat.gradients.zero_()
        if not self._is_attached():
            for flat in self._flats:
                for parameter, view in zip(flat.parameters, flat.gradient_views, strict=True):
                    parameter.grad = view
        self._attached = True

    def _is_attached(self) -> bool:
        """Whether gradients are the buffers' views; the ends stand for all of them."""
        ends = ((flat, end) for flat in self._flats for end in (0, -1))
        return self._attached and all(f.parameters[end].grad is f.gradient_views[end] for f, end in ends)

    @torch.no_grad()
    def gradients(self) -> Sequence[Tensor]:
        """The gradients that `step` will use, in as few tensors as can be; scale these to clip."""
        if self._together and self._is_attached():
            self._gathered = True
            return [flat.gradients for flat in self._flats]
        every = [p.grad for flat in self._flats for p in flat.parameters]
        present = [gradient for gradient in every if gradient is not None]
        self._gathered = self._together and len(present) == len(every)
        if not self._gathered:
            return present
        views = [view for flat in self._flats for view in flat.gradient_views]
        torch._foreach_copy_(views, present)
        for parameter, view in zip((p for flat in self._flats for p in flat.parameters), views, strict=True):
            parameter.grad = view  # frees what was copied, and shows what clipping makes of it
        self._attached = True
        return [flat.gradients for flat in self._flats]

    def step(self, closure: Any = None) -> Any:
        """Update every parameter that has a gradient; `closure` as in PyTorch."""
        if not self._gathered:
            self.gradients()
        if closure is not None or not self._gathered:
            self._separate()
            return super().step(closure)
        for group, whole in zip(self.param_groups, self._whole.param_groups, strict=True):
            whole.update({name: group[name] for name in ("lr", "eps", "weight_decay")})
        self._gathered = False
        return self._whole.step()

    def _separate(self) -> None:
        """Give every parameter a step counter of its own."""
        if self._together:
            for state in self.state.values():
                state["step"] = state["step"].clone()
        self._together = self._gathered = False

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copy a state into the buffers; the group's counter is shared again where all are equal."""
        super().load_state_dict(state_dict)
        counts = {float(state["step"]) for state in self.state.values()}
        self._together = len(counts) <= 1 and len(self.state) == sum(len(f.parameters) for f in self._flats)
        for flat, step in zip(self._flats, self._steps, strict=True):
            step.fill_(next(iter(counts), 0.0))
            for parameter, moments in zip(flat.parameters, flat.moment_views, strict=True):
                loaded = self.state[parameter]
                for name, view in moments.items():
                    view.copy_(loaded[name]) if name in loaded else view.zero_()
                own = step if self._together else loaded.get("step", torch.zeros_like(step)).clone()
                self.state[parameter] = {"step": own, **moments}
