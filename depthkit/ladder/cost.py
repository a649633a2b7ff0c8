"""What a rung costs, from its config alone: tokens, parameters, FLOPs, layer evaluations."""

from __future__ import annotations

from depthkit.model import Accounting, account
from depthkit.training.dry_run import look_at_data
from depthkit.training.run import RunConfig
from depthkit.utilization.options import EvalOptions, probe_configs
from depthkit.utilization.probe import Probe


class Vocabularies:
    """Fills in vocabulary sizes that the configs leave to the tokenizer, opening each kind of data once."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def fill(self, run: RunConfig) -> RunConfig:
        """The run with `model.vocab_size`.

        Raises:
            ValueError: the data cannot be opened, or does not go with the model.
        """
        if run.model.vocab_size is not None:
            return run
        data = run.data.model_dump_json()
        if data not in self._known:
            size = look_at_data(run)[0].model.vocab_size
            assert size is not None
            self._known[data] = size
        return run.with_vocabulary(self._known[data])


def train_tokens(run: RunConfig) -> int:
    """Positions a run trains on."""
    return run.total_steps * run.train.tokens_per_step(run.data.sequence_length)


def counts(run: RunConfig) -> Accounting:
    """Parameters and FLOPs; `model.vocab_size` must be filled in."""
    return account(run.model, run.data.sequence_length)


def train_flops(run: RunConfig) -> float:
    """FLOPs of the whole training; `model.vocab_size` must be filled in."""
    return counts(run).train_flops_per_token * train_tokens(run)


def evaluated_visits(options: EvalOptions, depth: int) -> float:
    """Layer evaluations of an evaluation for each of its windows: L(L+1)/2 when visits are skipped."""
    probes = probe_configs(options.asked)
    sweeps = any(probe.component.edits is not Probe.edits for probe in probes)
    return depth * (depth + 1) / 2 if sweeps else float(depth)
