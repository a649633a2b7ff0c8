"""What a model does after its last layer: final norm, head, and the whole of it as one function.

Shapes: B sequences, T positions, D width, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depthkit.utilization.capture import with_state
from depthkit.utilization.structure.events import Event


class OwnTail:
    """State to logits through the model's own code: its forward, with every layer handing over the state.

    Whatever the code does after the layers (norm, projection, scale, soft cap) applies as it stands. The
    layers compute nothing meanwhile, so a call costs the embedding, the norm and the head.

    Args:
        run: ids [B, T] -> the model's output.
        logits: that output -> [B, T, V].
        ids: [1, T] any valid ids; states are read T positions at a time, within every context length.
        outputs: what each layer returned once, so that a stub returns the like.
    """

    def __init__(
        self,
        run: Callable[[Tensor], Any],
        logits: Callable[[Any], Tensor],
        ids: Tensor,
        outputs: Mapping[nn.Module, Any],
    ):
        self._run, self._logits, self._ids, self._outputs = run, logits, ids, dict(outputs)

    def __call__(self, state: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, V]."""
        flat, time = state.flatten(0, -2), self._ids.shape[1]
        rows = -(-len(flat) // time)
        padded = torch.cat([flat, flat.new_zeros(rows * time - len(flat), flat.shape[1])])
        with _stubbed(self._outputs, padded.view(rows, time, -1)):
            logits = self._logits(self._run(self._ids.expand(rows, -1)))
        return logits.flatten(0, 1)[: len(flat)].view(*state.shape[:-1], -1)


@contextlib.contextmanager
def _stubbed(outputs: Mapping[nn.Module, Any], state: Tensor) -> Iterator[None]:
    """Every layer returns `state`, in the shape of what it returned before; undone afterwards."""
    own = {layer: vars(layer).get("forward") for layer in outputs}  # device maps set one on the instance
    try:
        for layer, output in outputs.items():
            vars(layer)["forward"] = _returning(with_state(output, state))
        yield
    finally:
        for layer, forward in own.items():
            vars(layer).pop("forward", None)
            if forward is not None:
                vars(layer)["forward"] = forward


def _returning(output: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: output


class Composed:
    """State to logits as `head(final_norm(state))`, for a model whose own code cannot be run that way."""

    def __init__(self, final_norm: nn.Module | None, head: nn.Module):
        self._final_norm, self._head = final_norm, head

    def __call__(self, state: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, V]."""
        state = state if self._final_norm is None else self._final_norm(state)
        # A tied head may be named by its embedding.
        return (
            F.linear(state, self._head.weight) if isinstance(self._head, nn.Embedding) else self._head(state)
        )


def find_final_norm(after: list[Event], state: Tensor, path: str | None) -> str | None:
    """The module that reads the last layer's state and returns one of its shape; None when there is none.

    Args:
        after: calls that began after the last layer ended, in order.
        state: what that layer returned.
        path: the module that is said to be it.

    Raises:
        ValueError: the module at `path` did not read the last state; the message names those that did.
    """
    readers = [e for e in after if any(torch.equal(tensor, state) for tensor in e.read)]
    norms = [e.path for e in readers if e.wrote and e.wrote[0].shape == state.shape]
    if path is not None and path not in norms:
        found = ", ".join(norms) or "none does"
        raise ValueError(f"subject.final_norm: {path} does not read the last layer's state ({found})")
    return path or (norms[0] if norms else None)


def find_head(after: list[Event], vocab_size: int) -> str | None:
    """The module after the last layer whose output is as wide as the logits; None when no module is."""
    wide = [event for event in after if event.wrote and event.wrote[0].shape[-1] == vocab_size]
    return wide[0].path if wide else None
