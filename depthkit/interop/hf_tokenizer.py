"""The tokenizer of a run in the form that `transformers` reads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from depthkit.data.subword import Subword
from depthkit.data.tokenizers.bytes import ByteTokenizer
from depthkit.files import write_json, write_text

BOS = "<bos>"


NAMES = ("tokenizer.json", "tokenizer_config.json")


def save(tokenizer: Any, config: Any, folder: Path, context: int) -> str | None:
    """Write tokenizer.json and tokenizer_config.json; what opens a document is put in front by itself.

    The files of a tokenizer that came with a `tokenizer_config.json` are copied as they are.

    Args:
        tokenizer: the run's.
        config: its settings.
        folder: where to write.
        context: longest sequence.

    Returns:
        Why there is none, or None.
    """
    given = _given(config)
    if given is not None:
        for name in NAMES:
            shutil.copyfile(given / name, folder / name)
        return None
    found = _library_tokenizer(tokenizer)
    if found is None:
        return f"tokenizer {type(tokenizer).__name__} reads no text, so none is written"
    text, bos = found
    write_text(folder / "tokenizer.json", text)
    marks = {} if bos is None else {"bos_token": bos, "eos_token": bos}
    write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": context, **marks},
    )
    return None


def ends_with(tokenizer: Any, config: Any) -> int | None:
    """The id that ends a text: what a `tokenizer_config.json` names, or else what opens the next document."""
    given = _given(config)
    if given is None:
        return tokenizer.bos
    from tokenizers import Tokenizer

    mark = json.loads((given / NAMES[1]).read_text(encoding="utf-8")).get("eos_token")
    text = mark["content"] if isinstance(mark, dict) else mark
    return None if text is None else Tokenizer.from_file(str(given / NAMES[0])).token_to_id(text)


def _given(config: Any) -> Path | None:
    """The folder of a tokenizer whose two files lie beside each other, or None."""
    if config.kind != "file":
        return None
    path = Path(config.path).expanduser()
    folder = path if path.is_dir() else path.parent
    whole = path in (folder, folder / NAMES[0]) and all((folder / name).is_file() for name in NAMES)
    return folder if whole else None


def _library_tokenizer(tokenizer: Any) -> tuple[str, str | None] | None:
    """A tokenizer.json and the mark that opens a document."""
    if isinstance(tokenizer, ByteTokenizer):
        return _bytes().to_str(), BOS
    if not isinstance(tokenizer, Subword):
        return None
    from tokenizers import Tokenizer

    text = tokenizer.to_json()
    mark = None if tokenizer.bos is None else Tokenizer.from_str(text).id_to_token(tokenizer.bos)
    return _with_bos(text, mark, tokenizer.bos), mark


def _bytes() -> Any:
    """The 256 bytes as a byte-level vocabulary without merges, each byte under its own id."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    names = _byte_names()
    made = Tokenizer(models.BPE(vocab={name: byte for byte, name in enumerate(names)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(BOS, special=True)])
    return Tokenizer.from_str(_with_bos(made.to_str(), BOS, 256))


def _byte_names() -> list[str]:
    """The printable character by which GPT-2's byte-level vocabularies write each byte."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _with_bos(text: str, mark: str | None, index: int | None) -> str:
    """A tokenizer.json that opens every text with the mark, unless it has a rule of its own."""
    content = json.loads(text)
    rule = content.get("post_processor") or {"type": "ByteLevel"}
    if mark is None or rule["type"] != "ByteLevel":
        return text
    opening, body = {"SpecialToken": {"id": mark, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [opening, body],
        "pair": [opening, body, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {mark: {"id": mark, "ids": [index], "tokens": [mark]}},
    }
    return json.dumps(content, ensure_ascii=False)
