"""Runs as Hugging Face folders: read by `transformers` alone, or in depthkit's own architecture."""

import json
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from depthkit.data.tokenizers.bytes import ByteTokenizer
from depthkit.interop import architecture, convert, imports
from depthkit.interop.export import export_run
from depthkit.interop.hf import import_transformers, quiet
from depthkit.model.generate import generate
from depthkit.training import checkpoint
from tests.interop.helpers import write_run
from tests.models import make_ids
from tests.utilization.families import family

QK = {"kind": "gqa", "num_heads": 2, "num_kv_heads": 1}
MOE = {"kind": "moe", "num_experts": 4, "top_k": 2, "hidden_dim": 24}


def blocks(mixer=None, ffn="swiglu"):
    return {"dense": {"mixer": QK | (mixer or {}), "ffn": ffn}}


STOCK = {
    "pre": ("llama", {}),
    "lns": ("llama", {"regulators": ["lns"]}),
    "layer_rope": ("llama", {"regulators": ["layer_rope"]}),
    "tied": ("llama", {"head": {"tied": True}, "regulators": ["lns"]}),
    "eps": ("llama", {"norm": {"kind": "rms", "eps": 1e-2}}),
    "loops with gains": ("llama", {"loops": 3, "regulators": ["loop_scale"]}),
    "window": ("mistral", {"blocks": blocks({"window": 4})}),
    "bias": ("qwen2", {"blocks": blocks({"bias": "qkv"})}),
    "qk_norm": ("qwen3", {"blocks": blocks({"qk_norm": True}), "regulators": ["lns"]}),
    "reordered": ("olmo2", {"blocks": blocks({"qk_norm": "all"}), "placement": "reordered"}),
    "moe": ("mixtral", {"blocks": blocks(ffn=MOE), "regulators": ["lns"]}),
    "moe qk_norm": ("qwen3_moe", {"blocks": blocks({"qk_norm": True}, MOE | {"renormalise": False})}),
    "moe all": ("olmoe", {"blocks": blocks({"qk_norm": "all"}, MOE)}),
    "layer gelu": (
        "gpt_neox",
        {
            "blocks": blocks({"bias": "qkv", "num_kv_heads": 2}, "gelu"),
            "norm": "layer",
            "regulators": ["lns"],
        },
    ),
}
OWN = {
    "loops": {"loops": 3},
    "adapter": {
        "segments": [
            {"name": "core", "pattern": ["dense"], "loops": 3, "inject": "linear", "state_init": "normal"},
            {"name": "coda", "pattern": ["dense"]},
        ]
    },
    "per-loop routers": {"loops": 2, "blocks": blocks(ffn=MOE | {"router": "per_loop", "bias_rate": 0.1})},
    "streams": {"stream": {"kind": "hyper"}},
    "skip": {"regulators": ["deepnorm"], "placement": "post", "final_norm": False},
    "post": {"placement": "post", "final_norm": False},
    "tied": {"loops": 2, "head": {"tied": True}},
}


def loaded(folder):
    with quiet(import_transformers()):
        return AutoModelForCausalLM.from_pretrained(folder).eval()


def ours(folder, x):
    with torch.no_grad():
        return convert.logits(checkpoint.load(folder).model, x)


@pytest.mark.parametrize("case", STOCK)
def test_a_stock_model_computes_the_same(case, tmp_path):
    wanted, model = STOCK[case]
    write_run(tmp_path / "run", **model)
    unroll = "loops" in model
    found = export_run(tmp_path / "run", tmp_path / "out", written_out=unroll)
    assert (found.family, found.reason) == (wanted, None)
    x = make_ids(time=13, vocab=257)
    theirs = loaded(found.folder)
    assert theirs.config.model_type == wanted
    with torch.no_grad():
        torch.testing.assert_close(theirs(x).logits, ours(tmp_path / "run", x), rtol=1e-5, atol=1e-5)
    again = imports.import_model(str(found.folder), tmp_path / "again")
    torch.testing.assert_close(ours(again, x), ours(tmp_path / "run", x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", OWN)
def test_anything_else_is_exported_as_itself(case, tmp_path):
    model = write_run(tmp_path / "run", **OWN[case])
    found = export_run(tmp_path / "run", tmp_path / "out")
    assert found.family == "depthkit"
    x = make_ids(time=13, vocab=257)
    theirs = loaded(found.folder)
    with torch.no_grad():
        assert torch.equal(theirs(x).logits, ours(tmp_path / "run", x))
        tokens = theirs.generate(x, max_new_tokens=3, do_sample=False, eos_token_id=None)
        assert torch.equal(tokens, torch.cat([x, *generate(model, x, 3)], dim=1))
        assert torch.equal(
            tokens, theirs.generate(x, max_new_tokens=3, use_cache=False, do_sample=False, eos_token_id=None)
        )
    again = imports.import_model(str(found.folder), tmp_path / "again")
    assert torch.equal(ours(again, x), ours(tmp_path / "run", x))


def test_the_cache_is_kept_by_visit(tmp_path):
    """Other loop counts when decoding than in the prompt, as depthkit's own generation has them."""
    model = write_run(tmp_path / "run", loops=3)
    theirs = architecture.wrapped(model, 16)
    x = make_ids(time=6, vocab=257)
    with torch.no_grad():
        first = theirs(x, use_cache=True, loops=3)
        held = first[architecture.CACHE]
        assert held.get_seq_length() == 6
        assert len(held.slots._slots) == 6
        token = first.logits[:, -1:].argmax(-1)
        second = theirs(token, loops=2, cache=held).logits[:, -1]
    wanted = list(generate(model, x, 2, prompt_loops=3, loops=2))
    assert torch.equal(token, wanted[0])
    assert torch.equal(second.argmax(-1, keepdim=True), wanted[1])


def test_padding_on_the_left_changes_nothing(tmp_path):
    theirs = architecture.wrapped(write_run(tmp_path / "run", loops=2), 16)
    x = make_ids(time=6, vocab=257)
    padded = torch.cat([torch.zeros(2, 3, dtype=torch.int64), x], dim=1)
    mask = (torch.arange(9) >= 3).long().expand(2, 9)
    with torch.no_grad():
        torch.testing.assert_close(theirs(padded, attention_mask=mask).logits[:, 3:], theirs(x).logits)
        plain = theirs.generate(x, max_new_tokens=4, do_sample=False)
        tokens = theirs.generate(padded, attention_mask=mask, max_new_tokens=4, do_sample=False)
    assert torch.equal(tokens[:, 3:], plain)
    with pytest.raises(ValueError, match="beam search is not supported"):
        theirs.generate(x, max_new_tokens=2, num_beams=2)


def test_the_loss_is_the_cross_entropy_and_in_training_the_objective(tmp_path):
    model = write_run(tmp_path / "run", blocks=blocks(ffn=MOE))
    theirs = architecture.wrapped(model, 16)
    x = make_ids(time=9, vocab=257)
    targets = architecture.shifted(x)
    assert targets.tolist()[0] == [*x.tolist()[0][1:], -100]
    output = model(x, targets)
    torch.testing.assert_close(theirs(x, labels=x).loss, output.cross_entropy)
    theirs.train()
    objective = theirs(x, labels=x).loss
    torch.testing.assert_close(objective, output.loss)
    assert objective > output.cross_entropy


def test_short_weights(tmp_path):
    write_run(tmp_path / "run", loops=2)
    export_run(tmp_path / "run", tmp_path / "out")
    x = make_ids(time=9, vocab=257)
    with quiet(import_transformers()), torch.no_grad():
        short = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.bfloat16)(x).logits
    wanted = ours(tmp_path / "run", x)
    assert (short.float() - wanted).abs().mean() < 0.05 * wanted.std()


def test_the_tokenizer_is_the_runs(tmp_path):
    write_run(tmp_path / "run")
    export_run(tmp_path / "run", tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "In the beginning — ἀρχῇ\n\t  <bos>x"
    mine = ByteTokenizer(None, None, None)
    found = tokenizer(text.replace("<bos>", ""))["input_ids"]
    assert found == [256, *mine.encode(text.replace("<bos>", "")).tolist()]
    assert tokenizer.decode(found, skip_special_tokens=True) == text.replace("<bos>", "")
    imports.import_model(str(tmp_path / "out"), tmp_path / "again")
    again = imports.runs.tokenizer_of(checkpoint.load(tmp_path / "again").config)
    assert again.encode(text).tolist() == mine.encode(text).tolist()
    assert (again.bos, again.vocab_size) == (256, 257)


def test_an_imported_tokenizer_is_handed_on(tmp_path):
    """With the marks and rules it came with."""
    from transformers import PreTrainedTokenizerFast

    write_run(tmp_path / "run")
    export_run(tmp_path / "run", tmp_path / "first")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "first")
    tokenizer.eos_token = "z"
    tokenizer.save_pretrained(tmp_path / "first")
    imports.import_model(str(tmp_path / "first"), tmp_path / "again")
    export_run(tmp_path / "again", tmp_path / "second")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "second" / name).read_bytes() == (tmp_path / "first" / name).read_bytes()
    config = json.loads((tmp_path / "second" / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"]) == (256, ord("z"))


def test_an_imported_context_is_handed_on(tmp_path):
    family("llama").save_pretrained(tmp_path / "model")
    imports.import_model(str(tmp_path / "model"), tmp_path / "run", ["data.sequence_length=16"])
    found = export_run(tmp_path / "run", tmp_path / "out").folder
    assert json.loads((found / "config.json").read_text())["max_position_embeddings"] == 256


def test_the_card_says_what_it_is(tmp_path):
    write_run(tmp_path / "run", regulators=["lns"])
    export_run(tmp_path / "run", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    for words in (
        "library_name: transformers",
        "A llama model",
        "The gains of lns are folded",
        "Depth 2 (visits) of 2 layers, width 16",
        "| trunk | 2 | 1 | 2 | rms | pre | lns |",
        "kind: bytes",
        "No held-out loss was measured",
        "Not measured: `python eval.py RUN`",
    ):
        assert words in card, words
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["max_position_embeddings"], config["bos_token_id"]) == (16, 256)


def test_the_card_has_the_loss_and_the_utilization_of_the_run(tmp_path):
    from depthkit.training.metrics import MetricsLog
    from depthkit.utilization import Sequences, evaluate

    model = write_run(tmp_path / "run")
    log = MetricsLog(tmp_path / "run" / "metrics.jsonl")
    log.append("validation", 0, val_loss=5.25, bits_per_byte=7.5)
    log.append("validation", 1, val_loss=1.0, bits_per_byte=1.0)
    log.close()
    report = evaluate(model, Sequences.of(make_ids(vocab=257)), ["ablation"])
    report.save(tmp_path / "run", html=False, plots=False)
    export_run(tmp_path / "run", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Held-out loss 5.2500 nats a token, 7.5000 bits a byte." in card
    assert "- Skipping: of 2 layers" in card


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ({"loops": 2}, {"family": "llama"}, r"--as llama: .* looped segment \(trunk\); --unroll"),
        (
            {},
            {"family": "qwen3"},
            "--as qwen3: the model would not be exactly a qwen3: qk_norm false, not true",
        ),
        ({}, {"family": "lama"}, "unknown architecture 'lama'; did you mean 'llama'"),
        ({"placement": "post", "final_norm": False}, {"family": "llama"}, "no final_norm"),
        ({"placement": "sandwich"}, {"family": "olmo2"}, "placement sandwich, not reordered"),
        ({"regulators": ["deepnorm"], "placement": "post"}, {"family": "llama"}, "cannot fold the skip gain"),
        (
            {"norm": {"kind": "rms", "eps": 1e-3}, "final_norm": {"kind": "rms"}},
            {"family": "llama"},
            "final_norm rms with eps 1e-06",
        ),
        ({"blocks": blocks({"scale_power": 1.0})}, {"family": "llama"}, "mixer.scale_power 1.0"),
        ({"embed": {"kind": "token", "scale": 2.0}}, {"family": "llama"}, "embed.scale 2.0"),
        ({"blocks": blocks(ffn=MOE | {"score": "sigmoid"})}, {"family": "mixtral"}, "ffn.score 'sigmoid'"),
    ],
)
def test_what_would_not_be_exact_is_refused(model, options, message, tmp_path):
    write_run(tmp_path / "run", **model)
    with pytest.raises(ValueError, match=message):
        export_run(tmp_path / "run", tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_no_checkpoint_and_a_folder_that_is_taken(tmp_path):
    with pytest.raises(ValueError, match="no checkpoint"):
        export_run(tmp_path / "none", tmp_path / "out")
    write_run(tmp_path / "run")
    with pytest.raises(ValueError, match="already holds something"):
        export_run(tmp_path / "run", tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("order", ["import depthkit, transformers", "import transformers, depthkit"])
def test_importing_depthkit_is_enough(order, tmp_path):
    write_run(tmp_path / "run", loops=2)
    export_run(tmp_path / "run", tmp_path / "out")
    code = f"{order}; m = transformers.AutoModelForCausalLM.from_pretrained({str(tmp_path / 'out')!r}); print(type(m))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "DepthkitForCausalLM" in found.stdout, found.stderr
