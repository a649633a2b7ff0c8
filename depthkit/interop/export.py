"""`python -m depthkit export`: a run as a Hugging Face folder.

A model that is exactly a Llama, Mistral, ... once its gains are folded is written as that, and needs nothing
of depthkit. Any other is written as depthkit's own architecture, which `transformers` knows once depthkit is
imported.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from depthkit import files
from depthkit.interop import card, convert, hf, hf_tokenizer, runs
from depthkit.interop.convert import OWN
from depthkit.interop.families import FAMILIES
from depthkit.model import Transformer, fold, unroll
from depthkit.registry import unknown
from depthkit.training import checkpoint, tensors

AUTO = "auto"


class Exported(NamedTuple):
    """What was written."""

    folder: Path
    family: str
    """The architecture: a family, or `depthkit`."""
    reason: str | None
    """Why it is not a stock model, or None."""


def export_run(run: Path, out: Path, family: str = AUTO, written_out: bool = False) -> Exported:
    """Write the model of a run (its latest checkpoint) or of a checkpoint as a Hugging Face folder.

    Args:
        run: a run or checkpoint folder.
        out: the folder to write, with config, weights, tokenizer and model card.
        family: a family, `depthkit`, or `auto` for the first family that is exact and else `depthkit`.
        written_out: give every visit of a looped segment a layer of its own first.

    Raises:
        ValueError: `out` holds something, no checkpoint, an unknown family, or one that would not be exact.
        OSError: something could not be written.
    """
    names = [AUTO, OWN, *FAMILIES.names()]
    if family not in names:
        raise ValueError(f"--as: {unknown('architecture', family, names)}")
    runs.check_free(out)
    loaded = checkpoint.load(run)
    model = unrolled(loaded.model) if written_out else loaded.model
    chosen, plain, reason = choose(model, family)
    tokenizer = runs.tokenizer_of(loaded.config)
    settings = loaded.config.data.tokenizer
    own_context = runs.origin_of(card.run_folder(loaded)).get("context") or 0
    context = max(loaded.config.data.sequence_length, own_context)
    marks = (tokenizer.bos, hf_tokenizer.ends_with(tokenizer, settings))
    made = _convert(plain or model, chosen, context, marks)
    with files.replacing_folder(out) as temporary, hf.quiet(hf.import_transformers()):
        made.save_pretrained(temporary)
        without = hf_tokenizer.save(tokenizer, settings, temporary, context)
        facts = card.Facts(loaded, chosen, reason, without)
        files.write_text(temporary / "README.md", card.model_card(facts))
    return Exported(out, chosen, reason)


def choose(model: Transformer, family: str) -> tuple[str, Transformer | None, str | None]:
    """The architecture, the folded model for a stock one, and else the reason why it is not.

    Raises:
        ValueError: `family` is a stock architecture that the model would not be exactly.
    """
    if family == OWN:
        return OWN, None, "depthkit's own architecture was asked for"
    plain, reason = foldable(model)
    found: dict[str, str | None] = dict.fromkeys(FAMILIES.names(), reason)
    if plain is not None:
        found = convert.reasons(plain.config)
    if family != AUTO:
        if found[family] is not None:
            raise ValueError(f"--as {family}: the model would not be exactly a {family}: {found[family]}")
        return family, plain, None
    fitting = [name for name, why in found.items() if why is None]
    return (fitting[0], plain, None) if fitting else (OWN, None, said(found))


def said(found: dict[str, str | None]) -> str:
    """Why no family fits, families with the same reason together."""
    by_reason: dict[str | None, list[str]] = {}
    for name, why in found.items():
        by_reason.setdefault(why, []).append(name)
    if len(by_reason) == 1:
        return f"no stock architecture has {next(iter(found.values()))}"
    return "; ".join(f"{', '.join(names)}: {why}" for why, names in by_reason.items())


def foldable(model: Transformer) -> tuple[Transformer | None, str | None]:
    """The model with its gains folded, or the reason why that cannot be."""
    looped = [s.name for s in model.config.segments if s.shared and s.longest_loops > 1]
    if looped:
        return None, f"a looped segment ({', '.join(looped)}); --unroll gives every visit a layer of its own"
    if not model.config.acting_regulators():
        return model, None
    try:
        return fold(model), None
    except ValueError as error:
        return None, f"gains that can be folded: it is refused as {error}"


def unrolled(model: Transformer) -> Transformer:
    """The model with a stored layer for every visit at its nominal loop counts.

    Raises:
        ValueError: something was learned for more loops than the nominal ones, and would be lost.
    """
    segments = [
        segment.model_copy(update={"loops": segment.num_loops, "shared": False})
        for segment in model.config.segments
    ]
    copy = Transformer(model.config.model_copy(update={"segments": segments}))
    try:
        tensors.into_module(copy, unroll(model).state_dict())
    except ValueError as error:
        raise ValueError(f"--unroll: loops beyond the nominal ones would be lost: {error}") from None
    return copy.train(model.training)


def _convert(model: Transformer, family: str, context: int, marks: tuple[int | None, int | None]) -> Any:
    if family != OWN:
        return convert.to_hf(model, family, context, *marks)
    from depthkit.interop.architecture import wrapped

    return wrapped(model, context, *marks)
