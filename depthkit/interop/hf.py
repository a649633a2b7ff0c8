"""Hugging Face causal language models: from a local folder, by name, or one that a package carries.

Everything that could change a number is explicit: number type, revision, attention implementation. Code
from a repository is not run unless asked, and only safetensors are read.
"""

from __future__ import annotations

import contextlib
import json
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from depthkit.interop import smollm2
from depthkit.utilization.options import EvalOptions

if TYPE_CHECKING:  # torch is imported when a model is loaded
    from depthkit.interop.disk import Streamed

BUILT_IN: dict[str, tuple[Callable[[], Path], str]] = {"smollm2": (smollm2.folder, smollm2.NOTE)}
"""Name -> where the model is (made on first use), and what to know about it."""
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
KEYS = {
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "context": "max_position_embeddings",
}
"""What a report says about the config -> the config's own name for it."""


@dataclass(frozen=True)
class Pretrained:
    """A loaded model, on the CPU and in evaluation mode.

    Attributes:
        model: a `transformers` causal language model.
        name: how reports call it.
        tokenizer: the `data.tokenizer` setting of its own tokenizer; None when a folder holds none.
        context: longest sequence; None when the config does not say.
        facts: what the report says about it.
        streamed: what reads its layers from disk; None when all of it is in memory. Such a model is where
            `device` says, not on the CPU.
    """

    model: Any
    name: str
    tokenizer: dict[str, Any] | None
    context: int | None
    facts: dict[str, Any]
    streamed: Streamed | None = None


def is_pretrained(target: str) -> bool:
    """Whether an evaluation target is a Hugging Face model: a built-in name, a folder, or a hub name."""
    path = Path(target)
    if target in BUILT_IN:
        return True
    if path.is_dir():
        return _is_model_folder(path)
    named = HUB_NAME.fullmatch(target) is not None
    return named and not (len(path.parts) > 1 and Path(path.parts[0]).is_dir())


def _is_model_folder(path: Path) -> bool:
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and bool({"model_type", "architectures"} & set(config))


def load(target: str, options: EvalOptions) -> Pretrained:
    """Load a model for evaluation.

    Raises:
        ValueError: the model cannot be had, lacks weights, or does not support what is asked.
    """
    place, note = BUILT_IN.get(target, (None, None))
    source = str(place()) if place else target
    streamed: Streamed | None = None
    if options.subject.stream == "disk":
        model, streamed = _load_streamed(source, options)
    else:
        model = _load(source, options)
    facts = _facts(model) | {
        "path": source,
        "revision": options.revision,
        "commit": getattr(model.config, "_commit_hash", None),
        "dtype": options.dtype,
        "attn_implementation": model.config._attn_implementation,
        "trust_remote_code": options.trust_remote_code,
    }
    return Pretrained(
        model=model,
        name=target if place else Path(source).resolve().name if Path(source).is_dir() else source,
        tokenizer=_tokenizer(source, options.revision),
        context=facts["context"],
        facts=facts | ({"note": note} if note else {}),
        streamed=streamed,
    )


def _load(source: str, options: EvalOptions, **where: Any) -> Any:
    transformers = import_transformers()
    import torch

    if not Path(source).is_dir():
        warnings.warn(f"looking for {source!r} on the Hugging Face hub and in its cache", stacklevel=2)
    with _refusing(source, options, transformers):
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            source,
            revision=options.revision or "main",
            attn_implementation=options.attn_implementation,
            trust_remote_code=options.trust_remote_code,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # named below instead
            output_loading_info=True,
            **({"dtype": getattr(torch, options.dtype)} | where),
        )
    _check_weights(source, report)
    return model.eval()


def load_stored(pretrained: Pretrained, options: EvalOptions) -> Any:
    """The same model once more, its weights in the number types that they are stored in."""
    return _load(pretrained.facts["path"], options, dtype="auto")


def _load_streamed(source: str, options: EvalOptions) -> tuple[Any, Streamed]:
    """The same model with its layers left on disk."""
    from depthkit.interop import disk
    from depthkit.training import device

    transformers = import_transformers()
    with _refusing(source, options, transformers):
        outline = disk.outline(transformers, source, options)
    paths, place = disk.layer_paths(outline, options), device.choose(options.device)
    with disk.offload_folder() as folder:
        where = disk.placement(outline, paths, place)
        model = _load(source, options, device_map=where, offload_folder=folder)
        return model, disk.Streamed(model, paths, folder, place)


@contextlib.contextmanager
def _refusing(source: str, options: EvalOptions, transformers: ModuleType) -> Iterator[None]:
    """What `transformers` raises inside, as one message; it is quiet meanwhile."""
    from safetensors import SafetensorError

    with quiet(transformers):
        try:
            yield
        except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
            raise ValueError(_refusal(source, options, str(error))) from None


def import_transformers() -> ModuleType:
    """The `transformers` library.

    Raises:
        ValueError: it is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise ValueError(
            f"Hugging Face models need the extra hf: pip install 'depthkit[hf]' ({error})"
        ) from None
    return transformers


@contextlib.contextmanager
def quiet(transformers: ModuleType) -> Iterator[None]:
    """No progress bars and log lines of `transformers` inside."""
    log = transformers.utils.logging
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity(log.CRITICAL)
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()


def _refusal(source: str, options: EvalOptions, reason: str) -> str:
    """One message for what `transformers` raised, with the setting that helps where one does."""
    if "attention implementation" in reason or "attn_implementation" in reason:
        chosen = options.attn_implementation
        return f"attn_implementation={chosen}: {source} does not support it; try attn_implementation=eager"
    if "trust_remote_code" in reason:
        return (
            f"{source}: its code is in its repository, and depthkit does not run that unless "
            "trust_remote_code=true"
        )
    reason = reason.strip().splitlines()[0] if reason.strip() else "no reason given"
    if Path(source).is_dir():
        return f"{source}: cannot be loaded as a causal language model: {reason}"
    return (
        f"{source}: no such run, checkpoint or model folder, and no Hugging Face model of that name could be "
        f"had: {reason} Without a network, give a local folder, or {', '.join(BUILT_IN)}."
    )


def _check_weights(source: str, report: dict[str, Any]) -> None:
    missing, unused = sorted(report["missing_keys"]), sorted(report["unexpected_keys"])
    other = sorted(report["mismatched_keys"])
    if other:
        name, held, wanted = other[0]
        raise ValueError(
            f"{source}: {len(other)} weights do not fit the config, such as {name}: "
            f"{list(held)}, not {list(wanted)}"
        )
    if missing:
        raise ValueError(
            f"{source}: {len(missing)} weights are missing, such as {missing[0]}, and would be random"
        )
    if unused:
        warnings.warn(f"{source}: {len(unused)} weights are not used, such as {unused[0]}", stacklevel=4)


def _facts(model: Any) -> dict[str, Any]:
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    tied = head is not None and getattr(head, "weight", None) is getattr(embeddings, "weight", 0)
    config = {name: getattr(model.config, key, None) for name, key in KEYS.items()}
    return config | {"model_type": model.config.model_type, "tied": tied}


def _tokenizer(source: str, revision: str | None) -> dict[str, Any] | None:
    if not Path(source).is_dir():
        return {"kind": "hub", "name": source, "revision": revision}
    return {"kind": "file", "path": source} if (Path(source) / "tokenizer.json").is_file() else None
