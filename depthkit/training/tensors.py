"""Named tensors to and from safetensors files, with a full disk reported as what it is."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn


def save(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write tensors under their names.

    Raises:
        OSError: the file could not be written.
    """
    path.touch()
    mode = path.stat().st_mode  # what the user's umask gives; the library would make the file private
    try:
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:  # the library hides the operating system's error in its text
        code = errno.ENOSPC if f"os error {errno.ENOSPC}" in str(error) else errno.EIO
        raise OSError(code, os.strerror(code), str(path)) from error
    path.chmod(mode)


def load(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, on the CPU."""
    return load_file(path)


def of_module(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers, each once: a tied one under the first of its names."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor
    return tensors


def into_module(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Put back what `of_module` gave.

    Raises:
        ValueError: names or shapes that are not the module's.
    """
    expected = {name: tuple(tensor.shape) for name, tensor in of_module(module).items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if wrong:
        name = wrong[0]
        raise ValueError(
            f"{len(wrong)} tensors do not fit the model, the first is {name!r}: "
            f"the model has {expected.get(name)}, the file {found.get(name)}"
        )
    module.load_state_dict(tensors, strict=False)  # strict would ask for the other names of tied tensors
