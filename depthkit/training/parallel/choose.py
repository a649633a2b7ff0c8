"""From a run's `parallel:` section to how this process takes part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from depthkit.training.parallel.base import Parallel
from depthkit.training.parallel.layout import DATA_PARALLEL
from depthkit.training.parallel.ranks import Ranks

if TYPE_CHECKING:
    from depthkit.training.run import RunConfig


def choose(config: RunConfig, ranks: Ranks) -> Parallel:
    """The way to share the work that `config` asks for among `ranks`.

    Raises:
        ValueError: sizes that do not go with the number of processes, or with the batch.
    """
    layout = config.parallel.arranged(ranks.size)
    layout.share(config.train.batch_size)
    kind: type[Parallel] = DATA_PARALLEL.get(layout.kind)
    way = kind(layout, ranks)
    if layout.expert == 1:
        return way
    if config.train.compile:
        raise ValueError("train.compile: true, but experts that are spread cannot be compiled; use false")
    from depthkit.training.parallel.experts import SpreadExperts

    return SpreadExperts(way)
