"""What the model would predict if it stopped after each visit.

Sources: logit lens arXiv:2303.08112 (tuned lens, KL from the final distribution), arXiv:2505.13898 (KL from
the early one); prediction depth arXiv:2106.09647.

Shapes: K chosen positions, D width, V vocabulary.
"""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from depthkit.registry import Spec
from depthkit.utilization.probe import Context, Probe
from depthkit.utilization.probes import PROBES
from depthkit.utilization.replay import Trace
from depthkit.utilization.result import Result, Scalar
from depthkit.utilization.statistics import Sample, number
from depthkit.utilization.table import series

METRICS = {
    "lens_kl_final_to_exit_nats.mean": (
        "nats",
        "KL(p_final || p_exit), p_exit read from the state after the visit",
    ),
    "lens_kl_exit_to_final_nats.mean": (
        "nats",
        "KL(p_exit || p_final), p_exit read from the state after the visit",
    ),
    "lens_top1_agreement.mean": ("fraction", "the exit's most likely token is the final one"),
    "lens_top5_overlap.mean": (
        "fraction",
        "share of the final five most likely tokens among the exit's five",
    ),
    "exit_loss_nats.mean": ("nats / token", "loss when the model stops after the visit"),
    "exit_accuracy.mean": ("fraction", "accuracy when the model stops after the visit"),
}
FLOOR = -1e4


class Prediction(NamedTuple):
    """Log-probabilities and probabilities [K, V], the five likeliest tokens [K, 5] (best first)."""

    logp: Tensor
    p: Tensor
    top: Tensor


@PROBES.register("lens")
class Lens(Probe):
    """Logit lens through the whole head path: KL both ways, agreement, and the loss of an early exit.

    Scored positions are read; where positions x vocabulary exceeds `max_logits`, an equal share of each
    sequence, drawn from a seed that depends on the sequence's own tokens, stands for the rest.
    """

    class Config(Spec):
        """Settings of `lens`."""

        max_logits: int = Field(2**24, ge=1)
        """Most logits to compute after one visit; beyond it positions are subsampled."""

    def __init__(self, config: Any, context: Context):
        super().__init__(config, context)
        self._tables = {name: self.table(self.depth + 1) for name in METRICS}
        self._settled = self.table(1)

    def see(self, trace: Trace) -> None:
        """Read out every state of one micro-batch at the chosen positions."""
        width = trace.states[0].shape[-1]
        chosen = self._choose(trace, self.context.subject.vocab_size(width))
        size = self.context.subject.chunk(width)
        for start in range(0, len(chosen), size):
            self._read(trace, chosen[start : start + size])

    def _choose(self, trace: Trace, vocab_size: int) -> Tensor:
        """[K, 2] (row, position) of the positions to read."""
        share = max(1, self.config.max_logits // vocab_size // len(self.context.sequences))
        chosen = []
        for row, scored in enumerate(trace.batch.scored.cpu()):
            where = scored.nonzero()[:, 0]
            if len(where) > share:
                seed = zlib.crc32(trace.batch.ids[row].cpu().numpy().tobytes()) ^ self.context.seed
                order = torch.randperm(len(where), generator=torch.Generator().manual_seed(seed))
                where = where[order[:share].sort().values]
            chosen.append(torch.stack([torch.full_like(where, row), where], 1))
        return torch.cat(chosen)

    def _read(self, trace: Trace, chosen: Tensor) -> None:
        rows, positions = chosen.to(trace.batch.ids.device).unbind(1)
        targets = trace.batch.targets[rows, positions]
        sequences = (chosen[:, 0] + trace.rows.start).numpy()
        final = self._predict(trace.final[rows, positions])
        settled = torch.full_like(targets, self.depth)
        still = torch.ones_like(targets, dtype=torch.bool)
        for visit in range(self.depth, -1, -1):
            state = trace.states[visit]
            early = final if state is trace.final else self._predict(state[rows, positions])
            still = still & (early.top[:, 0] == final.top[:, 0])
            settled = torch.where(still, visit, settled)
            for name, values in _compare(early, final, targets).items():
                self._tables[name].add_tokens(visit, sequences, values)
        self._settled.add_tokens(0, sequences, settled)

    def _predict(self, state: Tensor) -> Prediction:
        # A head may forbid tokens by -inf; a finite floor makes their share of a divergence 0, not NaN.
        logp = self.context.subject.read_out(state[None])[0].log_softmax(-1).clamp(min=FLOOR)
        return Prediction(logp, logp.exp(), logp.topk(min(5, logp.shape[-1])).indices)

    def compute(self) -> Result:
        """Series after each visit, the embedding's values as scalars, prediction depth."""
        result, seed = Result(), self.context.seed
        for name, (unit, definition) in METRICS.items():
            sample = self._tables[name].sample
            result.samples[name] = sample
            result.per_visit[name] = series(
                Sample(sample.sums[1:], sample.counts[1:]), seed, unit, definition
            )
            metric, _, aggregation = name.partition(".")
            value = number(sample.means()[0])
            result.scalars[f"{metric}_embed.{aggregation}"] = Scalar(value, f"{definition}: before any visit")
        self._finish(result)
        return result

    def _finish(self, result: Result) -> None:
        settled = series(self._settled.sample, self.context.seed, "visits", "")
        result.scalars["prediction_depth.mean"] = Scalar(
            settled.values[0],
            "visits after which a token's most likely prediction no longer changes",
            settled.low[0] if settled.low else None,
            settled.high[0] if settled.high else None,
        )
        read, scored = int(self._settled.sample.counts.sum()), self.context.sequences.num_scored
        result.scalars["lens_positions"] = Scalar(read, "positions the lens read")
        if read < scored:
            result.skipped["lens_positions"] = f"{read} of {scored} scored positions read (max_logits)"


def _compare(early: Prediction, final: Prediction, targets: Tensor) -> dict[str, Tensor]:
    """Every metric per position [K]."""
    gap = final.logp - early.logp
    shared = (early.top[:, :, None] == final.top[:, None, :]).any(-1).double().mean(-1)
    values = (
        torch.linalg.vecdot(final.p, gap),
        -torch.linalg.vecdot(early.p, gap),
        early.top[:, 0] == final.top[:, 0],
        shared,
        -early.logp.gather(1, targets[:, None])[:, 0],
        early.top[:, 0] == targets,
    )
    return dict(zip(METRICS, values, strict=True))
