"""Inputs of the expert backends, and an independent statement of what they compute."""

from typing import NamedTuple

import torch
from torch import Tensor

from depthkit.kernels.experts import backend

IDLE = 2
"""The expert that no token chooses."""
NAMES = ("y", "h", "weights", "gate", "up", "down")


class Case(NamedTuple):
    h: Tensor
    index: Tensor
    weights: Tensor
    gate: Tensor | None
    up: Tensor
    down: Tensor

    def of(self, dtype):
        """Everything but the choices and their weights in `dtype`."""
        cast = {
            n: t.to(dtype)
            for n, t in self._asdict().items()
            if n not in ("index", "weights") and t is not None
        }
        return self._replace(**cast)

    def double(self):
        return self.of(torch.float64)._replace(weights=self.weights.double())


def make_case(tokens=23, top_k=2, gated=True, experts=5, width=33, hidden=17, seed=0, device="cpu"):
    """Odd sizes; `IDLE` is chosen by no token, and the last expert by none but the first when k is 1."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    scores = draw(tokens, experts).index_fill(1, torch.tensor(IDLE), -torch.inf)
    gate = draw(experts, hidden, width) / width**0.5 if gated else None
    case = Case(
        h=draw(tokens, width),
        index=scores.topk(top_k).indices,
        weights=torch.rand(tokens, top_k, generator=generator) + 0.1,
        gate=gate,
        up=draw(experts, hidden, width) / width**0.5,
        down=draw(experts, width, hidden) / hidden**0.5,
    )
    return Case(*(None if tensor is None else tensor.to(device) for tensor in case))


def statement(h, index, weights, gate, up, down):
    """Every expert on every token, weighted by a dense `[N, E]` matrix; no sorting, no selecting."""
    share = torch.zeros(len(h), len(up), dtype=weights.dtype, device=h.device).scatter_add(1, index, weights)
    x = torch.einsum("nd,efd->nef", h, up)
    if gate is None:
        hidden = x * 0.5 * (1 + torch.erf(x / 2**0.5))
    else:
        z = torch.einsum("nd,efd->nef", h, gate)
        hidden = z / (1 + torch.exp(-z)) * x
    return torch.einsum("nef,edf,ne->nd", hidden, down, share)


def with_gradients(compute, case):
    """`{name: tensor}` of the output and of the gradients of a weighing of it, by `NAMES`."""
    leaves = Case(*(t.detach().clone().requires_grad_() if _real(t) else t for t in case))
    y = compute(*leaves)
    weighing = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).sin().add(0.2).view(y.shape)
    (y * weighing.to(y)).sum().backward()
    gradients = {name: t.grad for name, t in leaves._asdict().items() if _real(t)}
    return {"y": y.detach(), **gradients}


def _real(tensor):
    return tensor is not None and tensor.is_floating_point()


def assert_close(got, wanted, tolerance):
    """Every named tensor equal to within `tolerance` of the largest entry that is wanted."""
    assert got.keys() == wanted.keys()
    for name, tensor in got.items():
        error = (tensor.double() - wanted[name].double()).abs().max().item()
        scale = wanted[name].abs().max().item()
        assert error <= tolerance * scale, f"{name}: {error} of {scale}"


def assert_states_the_same(name, case, tolerance):
    """The backend's output and gradients against the statement in float64, and zero for the idle expert."""
    got = with_gradients(backend(name), case)
    assert_close(got, with_gradients(statement, case.double()), tolerance)
    for matrix in ("gate", "up", "down"):
        assert matrix not in got or not got[matrix][IDLE].any()
