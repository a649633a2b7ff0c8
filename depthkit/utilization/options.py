"""What `eval.py` accepts, and the named sets of probes. Reading this file loads no torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from depthkit.config import Component
from depthkit.registry import Spec, unknown
from depthkit.utilization.probes import PROBES

PRESETS: dict[str, tuple[str, ...]] = {
    "quick": ("stream", "contribution", "influence", "angular", "ablation", "causal", "lens"),
    "states": ("stream", "contribution", "influence", "angular", "lens"),
}
"""`quick` asks every question; `states` only those that one forward pass answers."""


class EvalOptions(Spec):
    """Settings of an evaluation."""

    preset: str = "quick"
    """Named set of probes: quick (all), states (those that need no skipping, so one pass)."""
    probes: list[Annotated[Any, Component(PROBES)]] | None = None
    """The probes themselves, such as [ablation, stream]; replaces the preset."""
    sequences: int = Field(16, ge=1)
    """Held-out windows to read, drawn with the seed."""
    sequence_length: int | None = Field(None, ge=1)
    """Tokens in a window; null takes the run's own."""
    seed: int = Field(0, ge=0)
    """Draws the windows and the bootstrap resamples."""
    batch_tokens: int = Field(1024, ge=1)
    """Tokens that go through a layer at once; results do not depend on it."""
    checkpoints: Literal["last", "all"] = "last"
    """Which checkpoints of a run: the last, or all, which also shows utilization over training."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto takes a GPU when there is one."""
    html: bool = True
    """Write the interactive report.html."""
    plots: bool = True
    """Write PNG plots."""
    out: str | None = None
    """Folder of the report; null writes into the run folder."""

    @field_validator("preset")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in PRESETS:
            raise ValueError(unknown("preset", value, PRESETS))
        return value


def probe_configs(probes: Any = None) -> list[Any]:
    """Validated probe configs from a preset's name, or from a list of names and `{kind: ...}` mappings.

    Raises:
        ValueError: unknown preset, unknown probe, unknown setting, or a probe named twice.
    """
    if isinstance(probes, str) and probes not in PRESETS:
        raise ValueError(unknown("preset", probes, PRESETS))
    listed = PRESETS[probes] if isinstance(probes, str) else PRESETS["quick"] if probes is None else probes
    configs: list[Any] = [Component(PROBES).validate(probe) for probe in listed]
    kinds = [config.kind for config in configs]
    if len(set(kinds)) < len(kinds) or not kinds:
        raise ValueError(f"probes: name at least one, each once, not {kinds}")
    return configs
