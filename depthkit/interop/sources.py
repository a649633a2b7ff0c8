"""Where a model to be rebuilt comes from: a run of depthkit or a Hugging Face model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from depthkit import config as configs
from depthkit.interop import imports
from depthkit.model import Transformer
from depthkit.training import checkpoint, manifest


class Source(NamedTuple):
    """A model and what its new run takes over."""

    model: Transformer
    data: dict[str, Any]
    """The `data:` section."""
    origin: dict[str, Any]
    """Where the weights are from."""
    imported: imports.Imported | None
    """What was imported, if it was."""

    def copy_tokenizer(self, out: Path) -> None:
        """Keep an imported model's tokenizer with the new run."""
        if self.imported is not None:
            imports.copy_tokenizer(self.imported.pretrained, out)


def open_source(source: str, out: Path) -> Source:
    """The model of a run or checkpoint folder, of a Hugging Face folder or name, or a built-in one.

    Args:
        source: which.
        out: the folder of the new run.

    Raises:
        ValueError: there is no such model, or it cannot be expressed.
    """
    path = Path(source)
    if (path / manifest.NAME).exists() or checkpoint.root_of(path).is_dir():
        loaded = checkpoint.load(path)
        origin = {"run": str(loaded.path), "step": loaded.step}
        return Source(loaded.model, configs.to_dict(loaded.config.data), origin, None)
    imported = imports.read(source)
    return Source(imported.model, imports.document(imported, out)["data"], imports.origin(imported), imported)


def chosen_layers(text: str, depth: int, option: str = "--layers") -> list[int]:
    """`1,3,8-11` -> [1, 3, 8, 9, 10, 11], counted from 0.

    Raises:
        ValueError: something else, a layer that is not there, or not in ascending order.
    """
    found: list[int] = []
    for word in text.split(","):
        first, _, last = word.partition("-")
        if not first.strip().isdigit() or (last and not last.strip().isdigit()):
            raise ValueError(f"{option}: {word!r} is not a layer such as 3, or a range such as 8-11")
        found += range(int(first), int(last or first) + 1)
    if not found or sorted(set(found)) != found or found[-1] >= depth:
        raise ValueError(f"{option}: {text!r} must name layers from 0 to {depth - 1} in ascending order")
    return found
