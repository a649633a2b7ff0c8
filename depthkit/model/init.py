"""Initialisation: every parameter from a stream of its own, so that depth does not shift the draws."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from depthkit.model.registries import INITS
from depthkit.model.roles import MATRICES, RoleInfo
from depthkit.registry import Spec


class Init:
    """Base of the init kinds: `std(fan_in)` of a matrix's normal distribution."""

    def __init__(self, config: Any):
        self.config = config

    def std(self, fan_in: int) -> float:
        """Standard deviation of a matrix that sums over `fan_in` inputs."""
        raise AssertionError("an init implements std")


@INITS.register("normal")
class Normal(Init):
    """Every matrix N(0, std^2), whatever its width."""

    equation = "std"
    source = "GPT-2 (Radford et al. 2019)"

    class Config(Spec):
        """Settings of `normal`."""

        std: float = Field(0.02, gt=0)
        """Standard deviation."""

    def std(self, fan_in: int) -> float:
        """The same for every matrix."""
        return self.config.std


@INITS.register("fan_in")
class FanIn(Init):
    """Every matrix N(0, scale^2 / fan_in); 0.64 gives std 0.02 at width 1024 and means the same elsewhere."""

    equation = "scale / sqrt(fan_in)"
    source = "LeCun et al. 1998, with the constant of std 0.02 at width 1024"

    class Config(Spec):
        """Settings of `fan_in`."""

        scale: float = Field(0.64, gt=0)
        """Numerator."""

    def std(self, fan_in: int) -> float:
        """Smaller for wider inputs."""
        return self.config.scale * fan_in**-0.5


def stream_seed(seed: int, *names: object) -> int:
    """A 63-bit seed for the named random stream that belongs to `seed`."""
    text = "/".join(str(name) for name in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def draw(shape: torch.Size, std: float, seed: int) -> Tensor:
    """Normal values on the CPU, whatever the model's device, so that all devices start alike."""
    generator = torch.Generator().manual_seed(seed)
    return torch.empty(shape).normal_(0.0, std, generator=generator)


@torch.no_grad()
def initialise(
    model: nn.Module, infos: Iterable[RoleInfo], init: Init, embedding_std: float, seed: int
) -> None:
    """Fill every parameter and buffer of `model`.

    Modules fill their own constants (norm gains, learned schedules) in `reset_parameters`; matrices and
    embeddings are drawn here by role. All of it is multiplied by the regulators' `Rule.init`.
    """
    for module in model.modules():
        if module is not model and hasattr(module, "reset_parameters"):
            module.reset_parameters()  # type: ignore[operator]
    for info in infos:
        if info.role not in MATRICES | {"embed"}:
            info.parameter.mul_(info.rule.init)
            continue
        std = embedding_std if info.role == "embed" else init.std(info.parameter.shape[-1])
        parameter = info.parameter
        parameter.copy_(draw(parameter.shape, std * info.rule.init, stream_seed(seed, "init", info.name)))
