"""Hugging Face models larger than memory: layers stay on disk and are read when they run.

`transformers` builds the model, reads what is outside the layers and knows which file holds which weight;
weights that it stores in another form than the model has (experts one by one) it writes once into a temporary
folder, which then needs as much room. What runs the layers comes from here, because a sweep runs one layer
for many streams before the next one.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from depthkit.utilization.options import EvalOptions
from depthkit.utilization.structure import find_layers, layers_at, stored

MOST = 2
"""Layers whose weights are held at once; a swap runs two in turn."""


class Streamed:
    """The layers of a model, each read from disk when it is called and forgotten for the next but one.

    Attributes:
        reads: how often a layer was read.
        peak: most layers that were held at once.
    """

    def __init__(self, model: nn.Module, paths: list[str], folder: str, device: torch.device):
        self.reads = self.peak = 0
        self._device = device
        self._weights = _weights(model)
        self._held: OrderedDict[str, nn.Module] = OrderedDict()
        self._num_layers = len(paths)
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        for path in paths:
            # In place of a hook: code that replaces a layer's forward then reads nothing.
            layer = model.get_submodule(path)
            vars(layer)["forward"] = self._reading(path, layer, layer.forward)

    def describe(self) -> dict[str, Any]:
        """For the report."""
        return {"passes": self.reads / self._num_layers, "reads": self.reads, "layers_held": self.peak}

    def _reading(self, path: str, layer: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self._hold(path, layer)
            return forward(*args, **kwargs)

        return run

    def _hold(self, path: str, layer: nn.Module) -> None:
        if path in self._held:
            self._held.move_to_end(path)
            return
        while len(self._held) >= MOST:
            self._fill(*self._held.popitem(last=False), torch.device("meta"))
        self._fill(path, layer, self._device)
        self._held[path] = layer
        self.reads += 1
        self.peak = max(self.peak, len(self._held))

    def _fill(self, path: str, layer: nn.Module, device: torch.device) -> None:
        from accelerate.utils import set_module_tensor_to_device

        for name in [name for name, _ in layer.named_parameters()]:
            value = None if device.type == "meta" else self._weights[f"{path}.{name}"]
            set_module_tensor_to_device(layer, name, device, value, clear_cache=False)


def layer_paths(model: nn.Module, options: EvalOptions) -> list[str]:
    """Where the layers are: as `subject.layers` says, or by name, since a model on disk cannot be watched.

    Raises:
        ValueError: none are found.
    """
    given = options.subject.layers
    layers = find_layers(model) if given is None else stored(layers_at(model, given))
    names = {module: path for path, module in model.named_modules()}
    return [names[layer] for layer in layers]


def outline(transformers: ModuleType, source: str, options: EvalOptions) -> nn.Module:
    """The model without numbers, from its config."""
    known = {"trust_remote_code": options.trust_remote_code}
    config = transformers.AutoConfig.from_pretrained(source, revision=options.revision or "main", **known)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation=options.attn_implementation, **known
        )


def placement(model: nn.Module, paths: list[str], device: torch.device) -> dict[str, str]:
    """A `device_map` with the layers on disk and all else on a device."""
    layers = {model.get_submodule(path) for path in paths}

    def spread(module: nn.Module, prefix: str) -> Iterator[tuple[str, str]]:
        for name, _ in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            yield f"{prefix}{name}", str(device)
        for name, child in module.named_children():
            if child in layers or layers.isdisjoint(child.modules()):
                yield f"{prefix}{name}", "disk" if child in layers else str(device)
            else:
                yield from spread(child, f"{prefix}{name}.")

    return dict(spread(model, ""))


@contextmanager
def offload_folder() -> Iterator[str]:
    """A temporary folder for weights in another form, gone if the block fails; `accelerate` says nothing."""
    log, folder = logging.getLogger("accelerate.big_modeling"), tempfile.mkdtemp(prefix="depthkit-layers-")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        log.setLevel(level)


def _weights(model: nn.Module) -> Mapping[str, Tensor]:
    """The weights on disk by name; `accelerate`'s own hooks, which read them at every call, are removed."""
    from accelerate.hooks import remove_hook_from_module

    maps = (getattr(getattr(module, "_hf_hook", None), "weights_map", None) for module in model.modules())
    found = next(each.dataset for each in maps if each is not None)
    remove_hook_from_module(model, recurse=True)
    for module in model.modules():
        vars(module).pop("forward", None)  # the class's own, which the hooks had put there
    return found
