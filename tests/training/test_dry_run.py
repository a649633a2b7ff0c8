import io

import pytest
import torch
from rich.console import Console

from depthkit.model import Transformer, account
from depthkit.training.dry_run import dry_run
from depthkit.training.memory import estimate
from depthkit.training.step import forward
from tests.training.test_step import batch


def printed(config, **options):
    out = io.StringIO()
    dry_run(config, console=Console(width=120, file=out), **options)
    return out.getvalue()


def test_the_plan_shows_every_visit_with_its_gains(run):
    text = printed(run(model={"depth": 2, "loops": 2, "regulators": ["lns"]}))
    assert "4 visits of 2 layers" in text
    row = next(line for line in text.splitlines() if "trunk.1.1" in line)
    assert [cell.strip() for cell in row.split("│")[1:-1]] == [
        "3",
        "trunk.1.1",
        "1",
        "dense",
        "0.5 - -",
        "0.5 - -",
    ]


def test_a_long_plan_is_shortened_unless_asked_for(run):
    config = run(model={"depth": 40})
    short, full = printed(config), printed(config, full=True)
    assert "16 more" in short
    assert "trunk.0.20" not in short
    assert all(f"trunk.0.{slot} " in full for slot in range(40))


def test_sizes_and_batches_add_up(run):
    config = run(steps=10)
    text = printed(config)
    counts = account(config.with_vocabulary(257).model, 16)
    assert f"{counts.stored:,}" in text
    assert f"{counts.train_flops_per_token:,.0f}" in text
    assert "4 x 2 x 16 = 128" in text
    assert "1,280" in text
    assert "1.12" in text  # epochs: 1,280 of 1,140 training tokens


def measured(config):
    """Bytes that a real forward keeps for the backward pass, weights left out."""
    model, kept, held = Transformer(config.model), {}, []

    def pack(tensor):
        held.append(tensor)
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward(model, batch(config.train.batch_size, config.data.sequence_length), 1, False)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    return sum(size for storage, size in kept.items() if storage not in weights)


def test_the_memory_estimate_is_what_a_real_step_keeps(run):
    model = {"depth": 5, "dim": 32, "loops": 2, "regulators": ["lns"]}
    config = run(model=model).with_vocabulary(257)
    memory = estimate(config, bf16=False)
    assert abs(memory.activations / measured(config) - 1) < 0.02
    stored = sum(p.numel() * 4 for p in Transformer(config.model).parameters())
    assert (memory.parameters, memory.gradients, memory.optimizer) == (stored, stored, 2 * stored)


def test_no_model_is_allocated(run):
    config = run(model={"depth": 1000, "dim": 2**15})  # tens of terabytes
    text = printed(config)
    assert "1000 layers" in text


def test_loops_without_gradient_keep_nothing_and_cost_a_forward(run):
    loops = {"kind": "fixed", "mean": 6, "backprop": 2}
    segment = {"name": "core", "pattern": ["dense"], "repeat": 2, "loops": loops, "inject": "add"}
    config = run(model={"dim": 32, "segments": [segment]}).with_vocabulary(257)
    assert abs(estimate(config, bf16=False).activations / measured(config) - 1) < 0.02
    assert "loops without gradient 1 x" in printed(config)


def test_checkpointing_keeps_what_is_read_and_the_inside_of_what_is_recomputed(run):
    def kept(depth, mode):
        config = run(model={"depth": depth, "dim": 32}, activation_checkpointing=mode).with_vocabulary(257)
        return estimate(config, bf16=False).activations

    state = 4 * 4 * 16 * 32  # bytes of [4, 16, 32] in fp32
    inside = kept(2, "none") - kept(1, "none")
    outside = kept(1, "none") - inside
    assert kept(7, "block") == outside + 7 * state + inside
    assert kept(7, {"kind": "every_k", "k": 3}) == outside + 3 * state + 3 * inside
    assert kept(7, "selective") == kept(7, "none")


@pytest.mark.parametrize(
    ("stream", "times"), [("single", 1), ("embedding_skip", 2), ("attention_residual", 9)]
)
def test_what_a_visit_reads_is_the_state_of_its_stream(run, stream, times):
    def kept(mode):
        model = {"depth": 40, "dim": 32, "stream": stream}
        return estimate(
            run(model=model, activation_checkpointing=mode).with_vocabulary(257), False
        ).activations

    between = kept("block") - kept({"kind": "every_k", "k": 40})
    one = 4 * 4 * 16 * 32 * times + (4 * 4 * 9 if stream == "attention_residual" else 0)
    inside = (kept("none") - kept({"kind": "every_k", "k": 39})) + 2 * one
    assert between == 39 * one - 39 * inside


def test_what_selective_checkpointing_keeps_is_not_estimated_and_this_is_said(run):
    assert "total without checkpointing" in printed(run(activation_checkpointing="selective"))
    assert "without checkpointing" not in printed(run(activation_checkpointing="block"))


def test_data_that_would_be_fetched_is_left_alone_where_the_vocabulary_is_written(run):
    data = {"corpus": {"kind": "hub", "name": "no/such-corpus"}}
    text = printed(run(model={"vocab": 300}, data=data))
    assert "not fetched, so how many tokens there are is not known: corpus no/such-corpus" in text
    assert "not known" in next(line for line in text.splitlines() if "epochs" in line)
    assert "not fetched" not in printed(run())
