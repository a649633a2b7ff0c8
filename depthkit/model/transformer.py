"""The model: embed, visit the layers in the plan's order, read out.

Shapes: B batch, T time, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from depthkit.model.assemble import make_layers, make_norm, make_recurrences, make_schedules
from depthkit.model.block import Aux, Block
from depthkit.model.checkpointing import NoCheckpointing
from depthkit.model.compile import compile_blocks
from depthkit.model.cross_entropy import IGNORE
from depthkit.model.gains import Gains, scaled
from depthkit.model.init import initialise
from depthkit.model.loops.states import EVALUATION, Noise
from depthkit.model.plan import Key, Plan, Visit
from depthkit.model.roles import RoleInfo, Rule, role_table, rule_table
from depthkit.model.rows import warn_of_untrained
from depthkit.model.schema import ModelConfig
from depthkit.model.walk import Carried, Inputs, Observe, Walk

if TYPE_CHECKING:
    from depthkit.model.cache import Cache

Loops = int | Mapping[str, int] | None
"""Loop count of every looped segment, or by segment; None is the nominal one."""

LOSS = "loss/"
"""Prefix of what is added to the objective in a visit's `aux`."""


class Output(NamedTuple):
    """What a forward returns; without targets only `hidden` and `aux`."""

    hidden: Tensor
    """`[B, T, D]` after the final norm."""
    aux: list[Aux]
    """What the branches of every visit had to say: losses, expert loads."""
    visits: tuple[Visit, ...]
    """The visits that were made."""
    loss: Tensor | None = None
    """Mean over scored tokens of cross-entropy and z-loss, plus auxiliary losses; what to differentiate."""
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
        self._plans: dict[Any, Plan] = {}
        self._unrolled = plan is not None
        self._stored = self.plan if self._unrolled else config.longest_plan()
        self.layers = make_layers(config, self._stored, self.stream)
        self.watching = [i for i in range(len(self.layers)) if self.block(i).watchers]
        self.final_norm = make_norm(config.outer_norm("final_norm"), config.dim, outer_gain, "final")
        self.head = config.head.component(config.head, config.dim, config.vocab_size)
        self.recurrences = make_recurrences(config, self.stream, self.final_norm)
        self.schedules = make_schedules(config, self.stream)
        self.checkpointing: Any = NoCheckpointing(None)
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
            rule = rules.get(name, Rule()).times(self.schedules.rule(self._stored, layer, branch, role))
            if layer is not None and branch is not None and (part, role) == ("before", "norm"):
                rule = rule.times(Rule(init=self.schedules.norm_start(self._stored, layer, branch)))
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
        loops: Loops = None,
        noise: Noise = EVALUATION,
        cache: Cache | None = None,
    ) -> Output:
        """Run the model.

        Args:
            ids: `[B, T]` int64.
            targets: `[B, T]` int64, -100 where not scored.
            documents: `[B, T]` int64 document ids; attention stays within a document.
            step: the optimiser step, for schedules that change over training.
            observe: called as `observe(visit, before, after)` with the residual stream `[B, T, D]`
                around every visit, graph attached.
            loops: loop count of every looped segment, or by segment; None is the nominal count.
            noise: where random initial states of looped segments come from.
            cache: keys and values of earlier positions; it is extended by these.

        Raises:
            ValueError: a loop count the model cannot run.
        """
        plan = self.plan if loops is None else self.plan_at(loops)
        counted = None if targets is None else targets != IGNORE
        walk = Walk(self, plan, Inputs(ids, documents, counted, noise, cache), step)
        carried, aux = walk.through(self.open(ids, walk.gains), observe)
        hidden = self._normalise(walk.close(carried.state), walk.gains)
        if targets is None:
            return Output(hidden, aux, plan.visits)
        total = self.head.loss(hidden, self._matrix(), targets)
        scored = (targets != IGNORE).sum()
        count = scored.clamp(min=1)
        differentiated = [walk.differentiated(visit) for visit in plan.visits]
        loss = total.objective / count + auxiliary_loss(aux, differentiated)
        return Output(hidden, aux, plan.visits, loss, total.nats / count, scored)

    def plan_at(self, loops: Loops) -> Plan:
        """The plan at other loop counts than the nominal ones, kept for the next time.

        Warns, once a segment, where something learned by loop has fewer loops, so that its last one serves.

        Raises:
            ValueError: an unknown segment, or a count it cannot run.
        """
        name = frozenset(loops.items()) if isinstance(loops, Mapping) else loops
        if name not in self._plans:
            plan = self.config.plan(loops)
            if self._unrolled and plan.loops != self.plan.loops:
                raise ValueError("loops: an unrolled model has a layer for every visit, and no other count")
            warn_of_untrained(self.modules(), plan)
            self._plans[name] = self.plan if self._unrolled else plan
        return self._plans[name]

    def open(self, ids: Tensor, gains: Gains) -> Carried:
        """What the first visit is given."""
        x, _ = self.embed_norm(scaled(gains.embed, self.embed(ids)))
        return Carried(self.stream.open(x))

    def after_step(self, loads: Mapping[Key, Tensor]) -> None:
        """Let banks that balance experts without a loss see the expert loads `[E]` of one optimiser step."""
        self.schedules.after_step(loads)

    def token_losses(
        self, ids: Tensor, targets: Tensor, documents: Tensor | None = None, loops: Loops = None
    ) -> Tensor:
        """Nats of every token `[B, T]`, fp32, 0 where the target is -100; no gradient."""
        with torch.no_grad():
            hidden = self(ids, documents=documents, loops=loops).hidden
            return self.head.token_losses(hidden, self._matrix(), targets)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits `[..., V]` of what a forward gave as `hidden`."""
        return self.head(hidden, self._matrix())

    def read_out(self, x: Tensor) -> Tensor:
        """Logits `[..., V]` of a residual state `[..., D]`: the whole path from the last visit on."""
        gains = self.schedules(self.plan, None, self.training, x.device)
        return self.head(self._normalise(x, gains), self._matrix())

    def _normalise(self, x: Tensor, gains: Gains) -> Tensor:
        hidden, _ = self.final_norm(x)
        # The head is linear, so a gain on the logits is a gain on what it reads.
        return scaled(gains.logits, scaled(gains.final, hidden))

    def block(self, layer: int) -> Block:
        """A stored layer."""
        block = self.layers[layer]
        assert isinstance(block, Block)
        return block

    def _matrix(self) -> Tensor:
        return self.head.weights(self.embed.weight)


def auxiliary_loss(aux: list[Aux], differentiated: list[bool]) -> Tensor | float:
    """Sum over kinds of the mean over visits; visits of truncated loops do not take part."""
    values: dict[str, list[Tensor]] = {}
    for visit, counts in zip(aux, differentiated, strict=True):
        for name, value in visit.items():
            if counts and name.startswith(LOSS):
                values.setdefault(name, []).append(value)
    return torch.stack([torch.stack(found).mean() for found in values.values()]).sum() if values else 0.0


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
