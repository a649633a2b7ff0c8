"""`python -m depthkit import`: a Hugging Face model as a run of depthkit at step 0."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from depthkit import config as configs
from depthkit.interop import convert, hf, runs
from depthkit.model import Transformer
from depthkit.utilization.options import EvalOptions

SEQUENCE_LENGTH = 256


class Imported(NamedTuple):
    """A Hugging Face model in our blocks."""

    model: Transformer
    pretrained: hf.Pretrained


def import_model(source: str, out: Path, overrides: Sequence[str] = (), revision: str | None = None) -> Path:
    """Write a Hugging Face model as a run folder that train.py, eval.py and generate work on.

    Args:
        source: a folder, a name on the hub, or `smollm2`.
        out: the folder to write.
        overrides: `key=value` settings of the run's config.
        revision: branch, tag or commit on the hub.

    Returns:
        `out`.

    Raises:
        ValueError: no such model, or one with something depthkit cannot express, named.
    """
    runs.check_free(out)
    imported = read(source, revision)
    config = runs.validated(document(imported, out), overrides, f"import {source}")
    copy_tokenizer(imported.pretrained, out)
    runs.write(out, config, imported.model, origin(imported))
    return out


def read(source: str, revision: str | None = None) -> Imported:
    """A Hugging Face model in our blocks, its config looked at before its weights are read.

    Raises:
        ValueError: as `import_model`.
    """
    from depthkit.interop import architecture  # noqa: F401, so that transformers knows what export wrote

    if not hf.is_pretrained(source):
        raise ValueError(
            f"{source}: not a Hugging Face model; give a folder with a config.json that names a model_type, "
            f"a name on the hub, or {', '.join(hf.BUILT_IN)}"
        )
    try:
        pretrained = hf.load(source, EvalOptions.model_validate({"revision": revision}))
        return Imported(convert.from_hf(pretrained.model), pretrained)
    except ValueError as error:
        said = str(error)
        raise ValueError(said if said.startswith(source) else f"{source}: {said}") from None


def document(imported: Imported, out: Path) -> dict[str, Any]:
    """The run's config: the model, its tokenizer on the King James text, and settings to train it on."""
    model, pretrained = imported
    tokenizer = pretrained.tokenizer or {"kind": "ids", "vocab_size": model.vocab_size}
    if tokenizer["kind"] == "file":
        tokenizer = tokenizer | {"path": str(tokenizer_folder(out))}
    length = min(SEQUENCE_LENGTH, pretrained.context or SEQUENCE_LENGTH)
    return {
        "kind": "run",
        "model": configs.to_dict(model.config),
        "data": {"tokenizer": tokenizer, "sequence_length": length},
        "train": runs.train_settings(out),
    }


def tokenizer_folder(out: Path) -> Path:
    """Where a run keeps the tokenizer that came with its model."""
    return out / "tokenizer"


def copy_tokenizer(pretrained: hf.Pretrained, out: Path) -> None:
    """Keep the files of a folder's tokenizer with the run, which then stands alone."""
    if pretrained.tokenizer is None or pretrained.tokenizer["kind"] != "file":
        return
    target = tokenizer_folder(out)
    target.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        file = Path(pretrained.tokenizer["path"]) / name
        if file.is_file():
            shutil.copyfile(file, target / name)


def origin(imported: Imported) -> dict[str, Any]:
    """Where the weights are from."""
    facts = imported.pretrained.facts
    kept = ("path", "revision", "commit", "model_type", "context", "note")
    return {"imported": imported.pretrained.name} | {name: facts[name] for name in kept if name in facts}
