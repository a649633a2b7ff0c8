"""What of a run's data lies on another machine."""

from __future__ import annotations

from depthkit.data.config import DataConfig


def remote(config: DataConfig) -> list[str]:
    """What would have to be fetched before the data can be opened, such as `corpus allenai/c4`.

    A corpus or tokenizer says so with a property `remote` of its config; what is in a cache counts as remote.
    """
    parts = (getattr(part, "remote", None) for part in (config.corpus, config.tokenizer))
    return [part for part in parts if part]
