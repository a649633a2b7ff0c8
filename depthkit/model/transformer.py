"""The model: embed, visit the layers in the plan's order, read out.

Shapes: B batch, T time, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from depthkit.model.assemble import make_layers, make_norm, make_schedules
from depthkit.model.block import Block
from depthkit.model.compile import compile_blocks
from depthkit.model.cross_entropy import IGNORE
from depthkit.model.gains import Gains, scaled
from depthkit.model.init import initialise
from depthkit.model.plan import Plan, Visit
from depthkit.model.roles import RoleInfo, Rule, role_table, rule_table
from depthkit.model.schema import ModelConfig

Observe = Callable[[Visit, Tensor, Tensor], None]


class Output(NamedTuple):
    """What a forward returns; without targets only `hidden` and `aux`."""

    hidden: Tensor
    """`[B, T, D]` after the final norm."""
    aux: dict[str, Tensor]
    """Auxiliary scalars by name, summed over visits."""
    loss: Tensor | None = None
    """Mean over scored tokens of cross-entropy and z-loss; the scalar to differentiate."""
    cross_entropy: Tensor | None = None
    """Mean nats a scored token, without gradient."""
    num_scored: Tensor | None = None
    """How many targets were scored."""


class Transformer(nn.Module):
    """A transformer from its config; parameters are initialised from `seed` unless built on the meta device.

    Raises:
        ValueError: `vocab_size` is null (no tokenizer has filled it in).
    """

    def __init__(self, config: ModelConfig, seed: int = 0, plan: Plan | None = None):
        super().__init__()
        if config.vocab_size is None:
            raise ValueError("model.vocab_size: null means the tokenizer's, but there is no tokenizer here")
        self.config = config
        self.plan = plan or config.plan()
        self.stream = config.stream.component(config.stream, config.dim)
        self.embed = config.embed.component(config.embed, config.dim, config.vocab_size)
        outer_gain = config.norm_gains(None)
        self.embed_norm = make_norm(config.outer_norm("embed_norm"), config.dim, outer_gain, "embed")
        self.layers = make_layers(config, self.plan, self.stream)
        self._watching = [i for i in range(len(self.layers)) if self._block(i).watchers]
        self.final_norm = make_norm(config.outer_norm("final_norm"), config.dim, outer_gain, "final")
        self.head = config.head.component(config.head, config.dim, config.vocab_size)
        self.schedules = make_schedules(config, self.stream.bank(self.plan))
        if not any(parameter.is_meta for parameter in self.parameters()):
            self.reset_parameters(seed)

    @property
    def vocab_size(self) -> int:
        """V."""
        assert self.config.vocab_size is not None
        return self.config.vocab_size

    def named_roles(self) -> Iterator[RoleInfo]:
        """Every parameter once, with its layer, branch, role and the regulators' rule for it."""
        roles, rules = role_table(self), rule_table(self)
        for name, parameter in self.named_parameters():
            layer, branch, part = _place(name)
            role = roles[name]
            rule = rules.get(name, Rule()).times(self.schedules.rule(self.plan, layer, branch, role))
            if layer is not None and branch is not None and (part, role) == ("before", "norm"):
                rule = rule.times(Rule(init=self.schedules.norm_start(self.plan, layer, branch)))
            yield RoleInfo(name, parameter, layer, branch, role, rule)

    def reset_parameters(self, seed: int = 0) -> None:
        """Fill all parameters and buffers; equal seeds give equal parameters on every device."""
        init = self.config.init.component(self.config.init)
        initialise(self, self.named_roles(), init, self.config.embedding_std, seed)

    def compile_blocks(self, backend: Any = "inductor") -> None:
        """Compile the blocks in place, one function for all layers and visits (`depthkit.model.compile`)."""
        compile_blocks(self.layers, backend)

    def forward(
        self,
        ids: Tensor,
        targets: Tensor | None = None,
        documents: Tensor | None = None,
        step: Tensor | None = None,
        observe: Observe | None = None,
    ) -> Output:
        """Run the model.

        Args:
            ids: `[B, T]` int64.
            targets: `[B, T]` int64, -100 where not scored.
            documents: `[B, T]` int64 document ids; attention stays within a document.
            step: the optimiser step, for schedules that change over training.
            observe: called as `observe(visit, before, after)` with the residual stream `[B, T, D]`
                around every visit, graph attached.
        """
        gains = self.schedules(self.plan, step, self.training, ids.device)
        state, aux = self._visit_all(ids, documents, gains, observe)
        hidden = self._normalise(self.stream.close(state, self.schedules.readout()), gains)
        if targets is None:
            return Output(hidden, aux)
        total = self.head.loss(hidden, self._matrix(), targets)
        scored = (targets != IGNORE).sum()
        count = scored.clamp(min=1)
        return Output(hidden, aux, total.objective / count, total.nats / count, scored)

    def token_losses(self, ids: Tensor, targets: Tensor, documents: Tensor | None = None) -> Tensor:
        """Nats of every token `[B, T]`, fp32, 0 where the target is -100; no gradient."""
        with torch.no_grad():
            hidden = self(ids, documents=documents).hidden
            return self.head.token_losses(hidden, self._matrix(), targets)

    def read_out(self, x: Tensor) -> Tensor:
        """Logits `[..., V]` of a residual state `[..., D]`: the whole path from the last visit on."""
        gains = self.schedules(self.plan, None, self.training, x.device)
        return self.head(self._normalise(x, gains), self._matrix())

    def _visit_all(
        self, ids: Tensor, documents: Tensor | None, gains: Gains, observe: Observe | None
    ) -> tuple[Any, dict[str, Tensor]]:
        x, _ = self.embed_norm(scaled(gains.embed, self.embed(ids)))
        state = self.stream.open(x)
        kinds = {visit.block: visit.layer for visit in self.plan.visits}
        for layer in self._watching:
            self._block(layer).look(ids)
        contexts = {kind: self._block(layer).prepare(ids, documents) for kind, layer in kinds.items()}
        aux: dict[str, Tensor] = {}
        per_visit = gains.per_visit(self.plan.depth)
        banks = self.schedules.banks(self.plan)
        for visit, site_gains, bank in zip(self.plan.visits, per_visit, banks, strict=True):
            before = state
            state, extra = self._block(visit.layer)(state, site_gains, contexts[visit.block], bank)
            for name, value in extra.items():
                aux[name] = aux[name] + value if name in aux else value
            if observe is not None:
                readout = self.schedules.readout()
                observe(visit, self.stream.close(before, readout), self.stream.close(state, readout))
        return state, aux

    def _normalise(self, x: Tensor, gains: Gains) -> Tensor:
        hidden, _ = self.final_norm(x)
        # The head is linear, so a gain on the logits is a gain on what it reads.
        return scaled(gains.logits, scaled(gains.final, hidden))

    def _block(self, layer: int) -> Block:
        block = self.layers[layer]
        assert isinstance(block, Block)
        return block

    def _matrix(self) -> Tensor:
        return self.head.weights(self.embed.weight)


def _place(name: str) -> tuple[int | None, str | None, str | None]:
    """Layer, branch, and which part of its site: `before`, `branch`, `after_branch` or `after_add`."""
    parts = name.split(".")
    return (int(parts[1]), parts[2], parts[3]) if parts[0] == "layers" else (None, None, None)


def unroll(model: Transformer) -> Transformer:
    """A model with a stored layer for every visit, equal to `model` bit for bit; keys stay as they are."""
    copy = Transformer(model.config, plan=model.plan.unrolled())
    looped = model.state_dict()
    state = {name: value for name, value in looped.items() if not name.startswith("layers.")}
    for visit in model.plan.visits:
        prefix = f"layers.{visit.layer}."
        for name, value in looped.items():
            if name.startswith(prefix):
                state[f"layers.{visit.index}.{name.removeprefix(prefix)}"] = value
    copy.load_state_dict(state)
    return copy.train(model.training)
