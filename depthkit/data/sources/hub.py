"""Any data set that the `datasets` library can load."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from depthkit.data import reading, store
from depthkit.data.interfaces import Split
from depthkit.data.reading import Row
from depthkit.data.registries import SOURCES
from depthkit.registry import Spec


class DatasetName(Spec):
    """Which data set."""

    name: str
    """Name on the Hugging Face hub, such as `HuggingFaceFW/fineweb-edu`, or a format such as `json`."""
    config: str | None = None
    """Configuration of the data set, such as `sample-10BT`."""
    revision: str | None = None
    """Branch, tag or commit of the data set."""
    data_files: list[str] | None = None
    """Files to read, where the name is a format or the data set holds several."""
    split: str = "train"
    """Split to train on."""
    validation_split: str | None = None
    """Split to validate on; null holds out a share of the training split."""

    @property
    def remote(self) -> str | None:
        """What would have to be fetched to open it; None for a folder, or a format with local files."""
        files = self.data_files or []
        here = bool(files) and "/" not in self.name and not any("://" in file for file in files)
        return None if here or Path(self.name).exists() else f"corpus {self.name}"


@SOURCES.register("hub")
class HubRecords:
    """A data set by name, as a whole; a record is a row."""

    class Config(DatasetName):
        """Which data set."""

    def __init__(self, config: DatasetName, streaming: bool = False):
        self._config = config
        self._streaming = streaming
        self.has_validation = config.validation_split is not None

    def _load(self, split: str) -> Any:
        return reading.load(
            "data.corpus hub",
            self._config.name,
            **self._config.model_dump(include={"revision", "data_files"}),
            **{"name": self._config.config} if self._config.config else {},
            streaming=self._streaming,
            split=split,
        )

    @cached_property
    def train(self) -> Any:
        """The library's data set to train on."""
        return self._load(self._config.split)

    @cached_property
    def validation(self) -> Any:
        """The library's data set to validate on; the training one where no other is named."""
        return self._load(self._config.validation_split) if self._config.validation_split else self.train

    @property
    def prints(self) -> list[str | None]:
        """The library's fingerprints of both; a stream has none."""
        return [getattr(rows, "_fingerprint", None) for rows in (self.train, self.validation)]

    @cached_property
    def fingerprint(self) -> str:
        """Sha256 of the library's fingerprint of the data and of all settings."""
        return store.key(prints=self.prints, **self._config.model_dump())

    def rows(self, split: Split) -> Iterator[Row]:
        """The records of a split, in the order of the data set."""
        return reading.rows("data.corpus hub", self.validation if split == "validation" else self.train)
