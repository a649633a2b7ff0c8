"""SmolLM2-135M in depthkit's blocks, cut, looped and trained: minutes on one core."""

import pytest
import torch

from depthkit.interop import convert, hf, imports
from depthkit.interop.layer_choice import Choice
from depthkit.interop.retrofit import retrofit
from depthkit.training import checkpoint, metrics
from depthkit.training.run import train
from depthkit.utilization.options import EvalOptions

pytestmark = pytest.mark.slow
PARTS = [*range(4), *range(18, 30)]
SMALL = [
    "train.steps=50",
    "train.batch_size=1",
    "train.lr=3.0e-4",
    "train.eval_tokens=256",
    "data.sequence_length=64",
]


def ids(model, time=48):
    return torch.randint(0, model.vocab_size, (1, time), generator=torch.Generator().manual_seed(0))


def test_import_and_one_loop_of_a_retrofit(tmp_path):
    original = hf.load("smollm2", EvalOptions()).model
    model = convert.from_hf(original)
    retrofit("smollm2", tmp_path / "run", Choice("4/8/4"), adapter=False)
    cut = checkpoint.load(tmp_path / "run").model
    x = ids(model)
    with torch.no_grad():
        wanted = original(x).logits
        torch.testing.assert_close(convert.logits(model, x), wanted, rtol=1e-5, atol=1e-4)
        original.model.layers = torch.nn.ModuleList(original.model.layers[layer] for layer in PARTS)
        wanted = original.model(x, use_cache=False).last_hidden_state
        torch.testing.assert_close(cut(x, loops=1).hidden, wanted, rtol=1e-4, atol=1e-4)


def test_a_retrofit_learns(tmp_path):
    """4/8/4 at 4 loops on the mean, 50 steps on the King James text."""
    out, sentence = retrofit("smollm2", tmp_path / "run", Choice("4/8/4"), overrides=SMALL)
    assert sentence == "prelude: layers 0 to 3; core: layers 18 to 25; coda: layers 26 to 29"
    train(checkpoint.load(out).config, tmp_path / "trained", quiet=True)
    losses = [row["loss"] for row in metrics.read(tmp_path / "trained" / "metrics.jsonl", "train")]
    assert sum(losses[-10:]) < sum(losses[:10]) - 5


def test_the_folder_stands_alone(tmp_path):
    imports.import_model("smollm2", tmp_path / "run")
    tokenizer = checkpoint.load(tmp_path / "run").config.data.tokenizer
    assert tokenizer.path == str(tmp_path / "run" / "tokenizer")
