"""What is being examined: any module with layers that pass a residual stream along.

Shapes: B sequences, T positions, D width, V vocabulary.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depthkit.utilization.capture import Call
from depthkit.utilization.sequences import IGNORED, Sequences

LIST_NAMES = ("layers", "h", "blocks")
CHUNK_LOGITS = 2**22
"""Logits held at once (16 MB in fp32)."""


@dataclass(frozen=True)
class Place:
    """Where a visit sits: its key (segment, loop, slot), the stored layer it runs, that layer's kind."""

    segment: str
    loop: int
    slot: int
    layer: int
    block: str


@dataclass(frozen=True)
class Scores:
    """How well a state predicts: [B, T] nats (0 where not scored), [B, T] whether the argmax is right."""

    nats: Tensor
    correct: Tensor


class Subject:
    """A model as the probes see it: layers in call order, visit keys, the whole head path, losses.

    Args:
        model: a module that is called with ids `[B, T]`.
        layers: its stored layers; found by structure when not given.
        read_out: raw residual state `[B, T, D]` -> logits `[B, T, V]` through the model's whole head
            path (final norm, head, scale, soft cap); `model.read_out` when not given.
        forward: `(ids, documents) -> output`; by default the model itself is called, without a cache.
        name: how reports call it.

    Raises:
        ValueError: no layer list or no read-out; the message says which argument helps.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        layers: Sequence[nn.Module] | None = None,
        read_out: Callable[[Tensor], Tensor] | None = None,
        forward: Callable[[Tensor, Tensor | None], Any] | None = None,
        name: str | None = None,
    ):
        self.model = model
        self.layers = list(layers) if layers is not None else find_layers(model)
        self._read_out = read_out or _own_read_out(model)
        self._forward = forward or self._call_model
        self.name = name or type(model).__name__
        self._vocab_size: int | None = None

    def run(self, ids: Tensor, documents: Tensor | None = None) -> Any:
        """One full forward of the model; returns whatever it returns."""
        return self._forward(ids, documents)

    def _call_model(self, ids: Tensor, documents: Tensor | None) -> Any:
        wanted: dict[str, Any] = {} if documents is None else {"documents": documents}
        if "use_cache" in inspect.signature(self.model.forward).parameters:
            wanted["use_cache"] = False  # a cache makes repeated or skipped layers read each other's entries
        return self.model(ids, **wanted)

    def read_out(self, state: Tensor) -> Tensor:
        """Logits of a raw residual state through the whole head path, fp32. [B, T, D] -> [B, T, V]."""
        return self._read_out(state).float()

    def logits(self, output: Any) -> Tensor:
        """The logits in what `run` returned: a tensor, `.logits`, or the first item of a plain tuple, fp32.

        Raises:
            ValueError: none of these.
        """
        found = getattr(output, "logits", output)
        found = found[0] if type(found) is tuple else found
        if not isinstance(found, Tensor):
            raise ValueError(f"{self.name}: found no logits in its output ({type(output).__name__})")
        return found.float()

    def own_losses(self, batch: Sequences) -> Tensor | None:
        """Nats of every token [B, T] as the model itself computes them, or None when it does not."""
        compute = getattr(self.model, "token_losses", None)
        return None if compute is None else compute(batch.ids, batch.targets, documents=batch.documents)

    def chunk(self, width: int) -> int:
        """How many positions of a `[.., width]` state go through the head at once."""
        return max(1, CHUNK_LOGITS // self.vocab_size(width))

    def vocab_size(self, width: int) -> int:
        """Number of logits the head gives for one state of this width."""
        if self._vocab_size is None:
            state = torch.zeros(1, 1, width, device=self.device, dtype=self.dtype)
            self._vocab_size = self.read_out(state).shape[-1]
        return self._vocab_size

    def score(self, state: Tensor, targets: Tensor) -> Scores:
        """Next-token loss and correctness of a raw residual state, with the head run in chunks."""
        flat, wanted = state.flatten(0, 1), targets.flatten()
        nats, correct = torch.zeros(len(flat)), torch.zeros(len(flat), dtype=torch.bool)
        size = self.chunk(state.shape[-1])
        for start in range(0, len(flat), size):
            part = slice(start, start + size)
            logits = self.read_out(flat[part][None])[0]
            nats[part] = F.cross_entropy(logits, wanted[part], reduction="none", ignore_index=IGNORED).cpu()
            correct[part] = (logits.argmax(-1) == wanted[part]).cpu()
        return Scores(nats.view_as(targets), correct.view_as(targets))

    def places(self, calls: Sequence[Call]) -> list[Place]:
        """The place of every call: from the model's plan when it has one, otherwise from call order."""
        if self.visits is not None:
            return [Place(*_key(v.key), v.layer, v.block) for v in self.visits]
        index = {layer: i for i, layer in enumerate(self.layers)}
        loops: dict[nn.Module, int] = {}
        places = []
        for call in calls:
            loop = loops[call.module] = loops.get(call.module, -1) + 1
            slot = index[call.module]
            places.append(Place("layers", loop, slot, slot, type(call.module).__name__))
        return places

    @property
    def visits(self) -> Sequence[Any] | None:
        """The visits of the model's own plan, or None when it has no plan."""
        plan: Any = getattr(self.model, "plan", None)
        return None if plan is None else plan.visits

    @cached_property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the parameters."""
        return next(self.model.parameters()).dtype

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Evaluation mode and no gradients inside; every module's training flag put back after."""
        flags = [(module, module.training) for module in self.model.modules()]
        try:
            self.model.eval()
            with torch.inference_mode():
                yield
        finally:
            for module, training in flags:
                module.training = training

    def describe(self, depth: int, width: int) -> dict[str, Any]:
        """What identifies the model in a report."""
        return {
            "name": self.name,
            "architecture": type(self.model).__name__,
            "num_layers": len(self.layers),
            "depth": depth,
            "dim": width,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "dtype": str(self.dtype).removeprefix("torch."),
        }


def _key(key: Any) -> tuple[str, int, int]:
    return key.segment, key.loop, key.slot


def _own_read_out(model: nn.Module) -> Callable[[Tensor], Tensor]:
    found = getattr(model, "read_out", None)
    if not callable(found):
        raise ValueError(
            f"{type(model).__name__} has no read_out method: pass read_out=, the whole head path"
        )
    return found


def find_layers(model: nn.Module) -> list[nn.Module]:
    """The outermost module list called layers, h or blocks.

    Raises:
        ValueError: none, or several equally near the root; the message names the candidates.
    """
    lists = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.ModuleList) and len(m)]
    named = [(n, m) for n, m in lists if n.rpartition(".")[2] in LIST_NAMES]
    nearest = min((n.count(".") for n, _ in named), default=0)
    found = [(n, m) for n, m in named if n.count(".") == nearest]
    if len(found) != 1:
        candidates = ", ".join(name for name, _ in found or lists) or "no module list at all"
        raise ValueError(f"{type(model).__name__}: found no single layer list ({candidates}): pass layers=")
    return list(found[0][1])
