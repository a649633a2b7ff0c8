"""The windows that a pretrained model is evaluated on: a text through its own tokenizer, or token ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from depthkit import config
from depthkit.data import CORPORA, DataConfig, open_data
from depthkit.interop.hf import Pretrained
from depthkit.registry import unknown
from depthkit.utilization import Sequences
from depthkit.utilization.options import EvalOptions
from depthkit.utilization.sequences import draw, with_bos

FILES = {
    ".npy": "tokens",
    ".bin": "tokens",
    ".txt": "files",
    ".jsonl": "files",
    ".parquet": "files",
}
"""Suffix of `data=FILE` -> the corpus that reads it."""


def windows(pretrained: Pretrained, options: EvalOptions) -> Sequences:
    """A seeded draw of windows, each opening with bos where the tokenizer has one.

    Raises:
        ValueError: data that cannot be read, no tokenizer for a text, or windows beyond the model's context.
    """
    length = _length(pretrained.context, options)
    settings = data_config(pretrained, options.data, length)
    data = open_data(settings, options.seed)
    pool = list(data.validation(64, max_tokens=64 * options.sequences * length))
    found = draw(Sequences.of_batches(pool), options.sequences, options.seed)
    bos = data.tokenizer.bos if options.bos == "auto" else None if options.bos == "none" else options.bos
    facts = {"name": _name(settings.corpus), "split": "validation", "bos": bos}
    facts["tokenizer"] = data.tokenizer.fingerprint
    read = found if bos is None else with_bos(found, int(bos))
    return read.labelled(facts | read.bytes_scored(data.tokenizer.byte_lengths))


def _length(context: int | None, options: EvalOptions) -> int:
    wanted = options.length(context)
    if context is not None and wanted > context:
        raise ValueError(f"sequence_length={wanted}: longer than the model's context of {context}")
    return wanted


def data_config(pretrained: Pretrained, data: Any, length: int) -> DataConfig:
    """The data settings that `data=` stands for; a file is read whole, the text `kjv` where it is held out.

    Raises:
        ValueError: an unknown name, or a text for a model without a tokenizer.
    """
    raw = dict(data) if isinstance(data, dict) else {"corpus": _corpus(str(data))}
    corpus = raw.get("corpus", "kjv")
    kind = corpus if isinstance(corpus, str) else corpus.get("kind")
    if "tokenizer" not in raw:
        raw["tokenizer"] = pretrained.tokenizer or _ids(pretrained, kind)
    return config.validate(DataConfig, raw | {"sequence_length": length}, "data")


def _corpus(data: str) -> Any:
    kind = FILES.get(Path(data).suffix)
    if kind == "tokens":
        return {"kind": kind, "path": data, "validation": data}
    if kind == "files":
        return {"kind": kind, "paths": [data], "validation": [data]}
    if data in CORPORA.names():
        return data
    raise ValueError(unknown("data", data, [*CORPORA.names(), *(f"a {suffix} file" for suffix in FILES)]))


def _ids(pretrained: Pretrained, kind: Any) -> dict[str, Any]:
    if kind != "tokens":
        raise ValueError(
            f"{pretrained.name}: has no tokenizer.json, so it cannot read text: give token ids, such as "
            "data=tokens.npy, or a data.tokenizer"
        )
    return {"kind": "ids", "vocab_size": pretrained.model.get_input_embeddings().num_embeddings}


def _name(corpus: Any) -> str:
    return getattr(corpus, "path", None) or ", ".join(getattr(corpus, "paths", [])) or corpus.kind
