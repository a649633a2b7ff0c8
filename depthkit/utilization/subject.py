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

from depthkit.utilization.sequences import IGNORED, Sequences
from depthkit.utilization.structure import Structure, examine, find_layers, layers_at, num_ids, stored

OFF = ("use_cache", "output_router_logits", "output_hidden_states", "output_attentions")
"""Arguments that are turned off where a model takes them: a cache makes repeated or skipped layers read each
other's entries, and the rest asks every layer for more than its state."""
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
        layers: its stored layers, or dotted paths of them or of the lists that hold them; found when not
            given: see `structure`.
        read_out: raw residual state `[B, T, D]` -> logits `[B, T, V]` through the model's whole head
            path (final norm, head, scale, soft cap). Without it `model.read_out`; without that, the
            model's own code after its last layer.
        forward: `(ids, documents) -> output`; by default the model itself is called, without a cache.
        name: how reports call it.
        final_norm, head: dotted paths that overrule what is found; with `head`, states are read out as
            `head(final_norm(state))`.

    Raises:
        ValueError: no layer list or no logits; the message says which argument helps.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        layers: str | Sequence[nn.Module | str] | None = None,
        read_out: Callable[[Tensor], Tensor] | None = None,
        forward: Callable[[Tensor, Tensor | None], Any] | None = None,
        name: str | None = None,
        final_norm: str | None = None,
        head: str | None = None,
    ):
        self.model: nn.Module = getattr(model, "_orig_mod", model)  # hooks inside a compiled model never run
        self._forward = forward or self._call_model
        self.name = name or type(self.model).__name__
        self._view = {"layers": layers, "final_norm": final_norm, "head": head}
        self._functions = [word for word, given in (("read_out", read_out), ("forward", forward)) if given]
        self._vocab_size: int | None = None
        own = read_out or getattr(self.model, "read_out", None)
        self.structure: Structure | None = None
        if own is not None and final_norm is None and head is None:
            self.layers = find_layers(self.model) if layers is None else stored(layers_at(self.model, layers))
            self._read_out: Callable[[Tensor], Tensor] = own
        else:
            self.structure = self._examine(layers, final_norm, head)
            self.layers = self.structure.layers
            self._read_out = self.structure.read_out if own is None or head else own

    def like(self, model: nn.Module) -> Subject:
        """The same view of another model of the same architecture, such as a null model.

        Raises:
            ValueError: this one is seen through functions that belong to its own model.
        """
        if self._functions:
            given = " and ".join(f"{word}=" for word in self._functions)
            raise ValueError(f"{self.name} is seen through {given}, which another model cannot be")
        names = {module: path for path, module in self.model.named_modules()}
        view: dict[str, Any] = dict(self._view)
        if view["layers"] is not None and not isinstance(view["layers"], str):
            view["layers"] = [part if isinstance(part, str) else names[part] for part in view["layers"]]
        return Subject(model, name=self.name, **view)

    def _examine(self, layers: Any, final_norm: str | None, head: str | None) -> Structure:
        paths = {"layers": layers, "final_norm": final_norm, "head": head}
        try:
            with self.frozen():
                return examine(self.model, self.run, self.logits, **paths)
        except NotImplementedError:
            raise ValueError(f"{self.name} cannot be called with ids: pass forward= and read_out=") from None

    def run(self, ids: Tensor, documents: Tensor | None = None) -> Any:
        """One full forward of the model; returns whatever it returns."""
        return self._forward(ids, documents)

    def _call_model(self, ids: Tensor, documents: Tensor | None) -> Any:
        wanted: dict[str, Any] = {} if documents is None else {"documents": documents}
        accepted = inspect.signature(self.model.forward).parameters
        if documents is not None and "documents" not in accepted:
            raise ValueError(
                f"{self.name}: takes no document numbers, so its windows cannot be masked by document"
            )
        return self.model(ids, **wanted | self.switched_off)

    @property
    def switched_off(self) -> dict[str, bool]:
        """Arguments of the model's forward that are turned off; see `OFF`."""
        accepted = inspect.signature(self.model.forward).parameters
        return {switch: False for switch in OFF if switch in accepted}

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
            raise ValueError(
                f"{self.name}: found no logits in its output ({type(output).__name__}): "
                "give a model that has its language-model head, or pass read_out="
            )
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

    def places(self, called: Sequence[nn.Module]) -> list[Place]:
        """The place of every call of a layer: from the model's plan if it has one, else from call order."""
        if self.visits is not None:
            return [Place(*_key(v.key), v.layer, v.block) for v in self.visits]
        index = {layer: i for i, layer in enumerate(self.layers)}
        loops: dict[nn.Module, int] = {}
        places = []
        for layer in called:
            loop = loops[layer] = loops.get(layer, -1) + 1
            slot = index[layer]
            places.append(Place("layers", loop, slot, slot, self._kind(slot)))
        return places

    def _kind(self, layer: int) -> str:
        """`moe` or `dense`, with its attention where a config has several; else the layer's class."""
        if self.structure is None:
            return type(self.layers[layer]).__name__
        kind = "moe" if self.structure.inside[layer].router else "dense"
        types = getattr(getattr(self.model, "config", None), "layer_types", None) or []
        mixed = len(types) == len(self.layers) and len(set(types)) > 1
        return f"{kind}, {types[layer].removesuffix('_attention')}" if mixed else kind

    @property
    def num_ids(self) -> int | None:
        """How many token ids the model knows; None when it does not say."""
        return num_ids(self.model)

    @property
    def unavailable(self) -> dict[str, str]:
        """Kinds of metrics that this model cannot have, each with the reason."""
        reason = self.structure.no_middle if self.structure else None
        return {"sublayers": reason} if reason else {}

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
        """Evaluation mode and no gradients inside; every module's training flag put back after.

        Not inference mode: its tensors, such as recorded masks, could never take part in a gradient.
        """
        flags = [(module, module.training) for module in self.model.modules()]
        try:
            self.model.eval()
            with torch.no_grad():
                yield
        finally:
            for module, training in flags:
                module.training = training

    def describe(self, depth: int, width: int) -> dict[str, Any]:
        """What identifies the model in a report."""
        found = {"structure": self.structure.describe()} if self.structure else {}
        return {
            "name": self.name,
            "architecture": type(self.model).__name__,
            "num_layers": len(self.layers),
            "depth": depth,
            "dim": width,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "dtype": str(self.dtype).removeprefix("torch."),
        } | found


def _key(key: Any) -> tuple[str, int, int]:
    return key.segment, key.loop, key.slot
