"""What happens between the visits of a looped segment: initial state, injection, carry, read-out.

    h_0 = state_init(e)
    loop t:  x = carry(inject(h_{t-1}, e)) + embedding_t;  y_t = h_t = blocks(x)
    handed on: out_norm(readout(y_1 .. y_R))

Everything acts on the residual stream through the stream's own `map` and `close`, so that what a state holds
besides the stream stays. Of n parallel streams, whose sum `close` gives, each gets an n-th of it.
Shapes: B batch, T time, D width, R loops there can be, n parallel streams.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from depthkit.model.contracts import Stream
from depthkit.model.loops.states import Noise
from depthkit.model.plan import make_plan
from depthkit.model.roles import assign
from depthkit.model.rows import Rows
from depthkit.model.schema import SegmentConfig


class Memory(NamedTuple):
    """What a segment remembers while it loops: its input and, if asked for, outputs of finished loops."""

    entry: Tensor
    outputs: tuple[Tensor, ...] = ()


class Recurrence(nn.Module):
    """The policies of one segment.

    Args:
        config: the segment.
        dim: D.
        stream: how the residual is carried.
        out_norm: applied to what is handed on, or None.
        owns_norm: whether that norm belongs to the segment.
    """

    def __init__(
        self,
        config: SegmentConfig,
        dim: int,
        stream: Stream,
        out_norm: nn.Module | None = None,
        owns_norm: bool = True,
    ):
        super().__init__()
        loops, nominal = config.longest_loops, config.num_loops
        by_loop = recurrence_parameters(config, dim, 2) > recurrence_parameters(config, dim, 1)
        self.rows = Rows(make_plan([config.laid_out(loops)])) if by_loop else None
        self.state_init = config.state_init.component(config.state_init)
        self.inject = config.inject.component(config.inject, dim, loops, nominal)
        self.carry = config.carry.component(config.carry, loops)
        self.readout = config.readout.component(config.readout, loops)
        self.embedding = nn.Parameter(torch.empty(loops, dim)) if config.loop_embedding else None
        if config.loop_embedding:
            assign(self, schedule="embedding")
        self.remembers = config.carry.acts or not self.readout.keeps_state
        self.injects = config.inject.acts
        self.out_norm = out_norm if owns_norm else None
        # A tuple keeps what is registered elsewhere, such as the model's final norm, from being ours too.
        self._stream, self._out_norm = (stream,), (out_norm,)

    def reset_parameters(self) -> None:
        """Loop embeddings start at zero."""
        if self.embedding is not None:
            nn.init.zeros_(self.embedding)

    def begin(self, state: Any, readout: Any, noise: Noise) -> tuple[Any, Memory]:
        """The state of the first loop, from what the segment was given."""
        stream = self._stream[0]
        entry = stream.close(state, readout)
        if self.state_init.is_input:
            return state, Memory(entry)
        start = self.state_init(entry, noise)
        return self._map(state, lambda h: _like(start, h)), Memory(entry)

    def before(self, state: Any, memory: Memory, loop: int) -> Any:
        """What loop `loop` (from 0) starts from."""
        if self.injects and (loop > 0 or self.inject.from_start or not self.state_init.is_input):
            state = self._map(state, lambda h: self.inject(h, _share(memory.entry, h), loop))
        if memory.outputs:
            state = self._map(state, lambda h: self.carry(h, [_share(y, h) for y in memory.outputs], loop))
        if self.embedding is not None:
            last = min(loop, len(self.embedding) - 1)
            row = self.embedding[last]
            state = self._map(state, lambda h: h + row)
        return state

    def after(self, state: Any, memory: Memory, readout: Any) -> Memory:
        """Memory with the output of the loop that has just ended."""
        if not self.remembers:
            return memory
        output = self._stream[0].close(state, readout)
        return memory._replace(outputs=(*memory.outputs, output))

    def end(self, state: Any, memory: Memory) -> Any:
        """What the segment hands on."""
        if not self.readout.keeps_state:
            mixed = self.readout(memory.outputs)
            state = self._map(state, lambda h: _like(_share(mixed, h), h))
        norm = self._out_norm[0]
        return state if norm is None else self._map(state, lambda h: norm(h)[0])

    def _map(self, state: Any, function: Callable[[Tensor], Tensor]) -> Any:
        return self._stream[0].map(state, function)


def _share(x: Tensor, h: Tensor) -> Tensor:
    """What a carried tensor has of the stream `x [B, T, D]`: all of it, or an n-th for `h [B, T, n, D]`."""
    return x if x.ndim == h.ndim else x.unsqueeze(-2) / h.shape[-2]


def _like(x: Tensor, h: Tensor) -> Tensor:
    """`x` in place of a carried tensor: itself, or repeated over parallel streams."""
    wide = x if x.ndim == h.ndim else x.unsqueeze(-2)
    return wide.expand_as(h).contiguous()


def recurrence_parameters(config: SegmentConfig, dim: int, loops: int | None = None) -> int:
    """Parameters of a segment's policies, without its norms, for `loops` or the most loops there can be."""
    loops = config.longest_loops if loops is None else loops
    policies = config.inject.num_parameters(dim, loops) + config.carry.num_parameters(loops)
    return policies + config.readout.num_parameters(loops) + loops * dim * config.loop_embedding
