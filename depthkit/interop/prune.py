"""A Hugging Face checkpoint without some of its layers, written only when it does what skipping them does.

Layers are named one by one and counted from 0, and a file beside the weights says which are gone. What a
config says about every layer, or about layers by number, is shortened with them. The result is loaded again
and its loss held against that of the model with those layers skipped: where something depends on a layer's
place in another way the two differ, and nothing is written.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from depthkit.files import replacing_folder, write_json
from depthkit.interop import hf
from depthkit.interop.hf import Pretrained
from depthkit.interop.text import windows
from depthkit.training import device
from depthkit.utilization.edits import skip
from depthkit.utilization.options import EvalOptions
from depthkit.utilization.replay import Engine, replay
from depthkit.utilization.sequences import Sequences
from depthkit.utilization.subject import Subject

TOLERANCE = 1e-4
"""Nats that the written checkpoint's losses may differ from the skip's, mean over tokens."""
RECORD = "pruned.json"
NOT_COPIED = (
    "config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "*.bin",
    "*.gguf",
    "*.pt",
    "*.pth",
    ".*",
)
Kept = list[int]
BY_NUMBER: dict[str, Callable[[Any, Kept], Any]] = {
    "mlp_only_layers": lambda value, kept: [kept.index(layer) for layer in value if layer in kept],
    "first_k_dense_replace": lambda value, kept: sum(layer < value for layer in kept),
}
"""Settings that name or count layers by number, and what becomes of them when only some layers are kept."""


@dataclass(frozen=True)
class Pruned:
    """What was removed, and the losses (nats a token) of the model, of the skip, and of what was written."""

    source: str
    revision: str | None
    removed_layers: list[int]
    kept_layers: list[int]
    loss_intact: float
    loss_skipped: float
    loss_written: float

    @property
    def sentence(self) -> str:
        """For the terminal."""
        count = len(self.removed_layers)
        return (
            f"Removed {count} of {count + len(self.kept_layers)} layers (from 0): "
            f"{', '.join(map(str, self.removed_layers))}. Loss {self.loss_intact:.4f} before, "
            f"{self.loss_written:.4f} after; with the layers skipped instead {self.loss_skipped:.4f}."
        )


def prune(target: str, options: EvalOptions) -> tuple[Path, Pruned]:
    """Write `target` without `options.dropped` as a checkpoint that `transformers` loads.

    Raises:
        ValueError: layers that do not exist, a folder that holds something else, or a model whose layers
            cannot be removed; then nothing is written.
    """
    if options.subject.stream == "disk":
        raise ValueError("drop: reads and writes all weights, so subject.stream=disk cannot be used with it")
    pretrained = hf.load(target, options)
    sequences = windows(pretrained, options)
    subject = _subject(pretrained, options)
    removed = _checked(subject, options.dropped)
    folder = _folder(pretrained.name, removed, options.out)
    intact, skipped = losses(subject, sequences, options, removed)
    kept = [layer for layer in range(len(subject.layers)) if layer not in removed]
    with replacing_folder(folder) as temporary:
        _write(pretrained, options, _list_of(subject), kept, temporary)
        written, _ = losses(_reloaded(target, temporary, options, removed), sequences, options, [])
        means = [float(nats.sum()) / sequences.num_scored for nats in (intact, skipped, written)]
        off = float((skipped - written).abs().sum()) / sequences.num_scored
        _check(target, removed, means, off)
        facts = pretrained.facts
        found = Pruned(facts["path"], facts["revision"], removed, kept, *means)
        write_json(temporary / RECORD, asdict(found) | {"data": sequences.describe(), "seed": options.seed})
    return folder, found


def _subject(pretrained: Pretrained, options: EvalOptions) -> Subject:
    places = options.subject.model_dump(include={"layers", "final_norm", "head"})
    model = pretrained.model.to(device.choose(options.device))
    return Subject(model, name=pretrained.name, **places)


def _checked(subject: Subject, dropped: list[int]) -> list[int]:
    """The layers to remove, ascending."""
    count, wanted = len(subject.layers), sorted(dropped)
    if len(set(wanted)) < len(wanted):
        raise ValueError(f"drop={dropped}: names a layer twice")
    for layer in wanted:
        if not 0 <= layer < count:
            raise ValueError(f"drop={dropped}: {subject.name} has layers 0 to {count - 1}, no {layer}")
    if len(wanted) == count:
        raise ValueError(f"drop={dropped}: these are all layers of {subject.name}")
    return wanted


def _list_of(subject: Subject) -> str:
    """The path of the one list that holds all layers."""
    paths = list(subject.structure.lists) if subject.structure else []
    if len(paths) != 1 or not isinstance(subject.model.get_submodule(paths[0]), nn.ModuleList):
        where = ", ".join(paths) or "unknown places"
        raise ValueError(f"drop: the layers of {subject.name} are not in one list ({where})")
    return paths[0]


def _folder(name: str, removed: list[int], out: str | None) -> Path:
    told = "-".join(map(str, removed)) if len(removed) <= 8 else f"{len(removed)}-layers"
    folder = Path(out or Path("pruned") / f"{name.replace('/', '--')}-without-{told}")
    if folder.exists() and not (folder / RECORD).is_file():
        raise ValueError(f"out={folder}: exists and was not written by drop; choose another folder")
    return folder


def losses(
    subject: Subject, sequences: Sequences, options: EvalOptions, removed: list[int]
) -> tuple[Tensor, Tensor]:
    """Nats of every token `[N, T]` of the model, and of the model with layers skipped by the replay engine.

    Raises:
        ValueError: a layer runs more than once in a forward.
    """
    whole, cut = [], []
    with subject.frozen():
        for trace in Engine(subject, sequences, options.batch_tokens).record():
            if trace.depth != len(subject.layers):
                raise ValueError(
                    f"drop: {subject.name} runs {len(subject.layers)} layers {trace.depth} times"
                )
            final = replay(trace, skip(*removed)) if removed else trace.final
            whole.append(trace.scores.nats.double())
            cut.append(subject.score(final, trace.batch.targets).nats.double())
    return torch.cat(whole), torch.cat(cut)


def _write(pretrained: Pretrained, options: EvalOptions, path: str, kept: Kept, folder: Path) -> None:
    """Weights as they are stored, the shortened config, and the files of the tokenizer."""
    model = hf.load_stored(pretrained, options)
    layers = model.get_submodule(path)
    config = shortened(model.config, kept, len(layers))
    parent, _, name = path.rpartition(".")
    # The model is written, never run: its layers still believe in their old places.
    setattr(model.get_submodule(parent), name, nn.ModuleList([layers[layer] for layer in kept]))
    model.config = config
    with hf.quiet(hf.import_transformers()):
        model.save_pretrained(folder)
    _copy_tokenizer(pretrained, folder)


def shortened(config: Any, kept: Kept, total: int) -> Any:
    """A copy of a config in which only the layers `kept`, of `total`, are spoken of."""
    config = copy.deepcopy(config)
    text = config.get_text_config()
    changes: dict[str, Any] = {"num_hidden_layers": len(kept)}
    for name, value in text.to_dict().items():
        if name in BY_NUMBER and value is not None:
            changes[name] = BY_NUMBER[name](value, kept)
        elif isinstance(value, (list, tuple)) and len(value) == total:
            changes[name] = [value[layer] for layer in kept]
    for name, value in changes.items():
        setattr(text, name, value)
    return config


def _copy_tokenizer(pretrained: Pretrained, folder: Path) -> None:
    source = Path(pretrained.facts["path"])
    if source.is_dir():
        ignored = {path.name for pattern in NOT_COPIED for path in source.glob(pattern)}
        for file in source.iterdir():
            if file.is_file() and file.name not in ignored and not (folder / file.name).exists():
                shutil.copy(file, folder / file.name)
    elif pretrained.tokenizer is not None:
        transformers = hf.import_transformers()
        revision = pretrained.facts["revision"] or "main"
        with hf.quiet(transformers):
            transformers.AutoTokenizer.from_pretrained(str(source), revision=revision).save_pretrained(folder)


def _reloaded(target: str, folder: Path, options: EvalOptions, removed: list[int]) -> Subject:
    local = options.model_copy(update={"revision": None})
    try:
        return _subject(hf.load(str(folder), local), local)
    except ValueError as error:
        reason = str(error).removeprefix(f"{folder}: ")
        raise ValueError(f"{target}: cannot be written without layers {removed}: {reason}") from None


def _check(target: str, removed: list[int], means: list[float], off: float) -> None:
    if not off <= TOLERANCE:
        raise ValueError(
            f"{target}: cannot be written without layers {removed}: the loss would be {means[2]:.4f}, where "
            f"skipping them gives {means[1]:.4f} (tokens differ by {off:.2g} on average): something "
            "else in this architecture depends on a layer's place."
        )
