import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from depthkit.model import Transformer, account
from tests.models import make_config, make_ids

VARIANTS = {
    "plain": {},
    "looped": {"loops": 3},
    "tied": {"head": {"kind": "lm", "tied": True}},
    "sandwich": {"placement": "sandwich", "norm": "layer", "embed_norm": True},
    "no_norm": {"norm": "none"},
    "own_final": {"final_norm": {"kind": "layer", "bias": False}},
    "mha_gelu": {
        "blocks": {
            "dense": {"mixer": {"kind": "gqa", "num_heads": 4, "qk_norm": True, "head_dim": 6}, "ffn": "gelu"}
        }
    },
}


@pytest.mark.parametrize("name", VARIANTS)
def test_stored_equals_the_built_model(name):
    config = make_config(depth=3, **VARIANTS[name])
    assert account(config, 9).stored == sum(p.numel() for p in Transformer(config).parameters())


@pytest.mark.parametrize("name", VARIANTS)
def test_executed_flops_equal_torch_flop_counter(name):
    raw = {**VARIANTS[name]}
    mixer = {"kind": "gqa", "num_heads": 2, "num_kv_heads": 1, "backend": "eager"}
    blocks = raw.pop("blocks", {"dense": {"mixer": mixer, "ffn": "swiglu"}})
    blocks["dense"]["mixer"]["backend"] = "eager"
    config = make_config(depth=3, blocks=blocks, **raw)
    model, ids = Transformer(config), make_ids()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.head(model(ids).hidden, model._matrix())
    assert counter.get_total_flops() == account(config, ids.shape[1]).executed_flops_per_token * ids.numel()


@pytest.mark.parametrize(("causal", "window"), [(True, None), (True, 3), (False, None), (False, 3)])
def test_attention_flops_count_the_pairs_of_the_mask(causal, window):
    mixer = make_config().blocks["dense"].mixer.model_copy(update={"causal": causal, "window": window})
    time = 7
    pairs = sum(
        (j <= i or not causal) and (window is None or abs(i - j) < window)
        for i in range(time)
        for j in range(time)
    )
    projections = 2 * time * mixer.num_parameters(16)
    assert mixer.flops(16, time) - projections == 4 * pairs * 2 * 8
    if causal and window is None:
        assert mixer.flops(16, time) - projections == time * 2 * (time + 1) * 2 * 8


def test_loops_multiply_what_is_executed_and_nothing_that_is_stored():
    once, thrice = account(make_config(loops=1), 8), account(make_config(loops=3), 8)
    assert once.stored == thrice.stored
    assert once.active == thrice.active
    head = 16 * 31 + 16 + 16
    assert thrice.executed - head == 3 * (once.executed - head)
    assert thrice.train_flops_per_token == 3 * thrice.flops_per_token


def test_active_of_a_dense_model_is_all_but_the_unused_embedding_rows():
    counts = account(make_config(), 8)
    assert counts.active == counts.stored - 30 * 16
    tied = account(make_config(head={"kind": "lm", "tied": True}), 8)
    assert tied.active == tied.stored


def test_a_missing_vocabulary_is_refused():
    with pytest.raises(ValueError, match="vocab_size"):
        account(make_config(vocab=None), 8)
