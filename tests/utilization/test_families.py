"""29 Hugging Face families: structure found without a table, replays bitwise, the whole head path in the lens."""

import pytest
import torch

from depthkit.utilization import Sequences, Subject, canaries
from depthkit.utilization.capture import state_of
from depthkit.utilization.edits import skip
from depthkit.utilization.replay import Engine, replay
from depthkit.utilization.structure import silent
from tests.utilization.families import FAMILIES, family
from tests.utilization.models import tokens

PARALLEL = {"cohere", "falcon", "gpt_neox", "gptj", "phi"}
LISTS = {
    **dict.fromkeys(FAMILIES, "model.layers"),
    **dict.fromkeys(["bloom", "falcon", "gpt2", "gptj"], "transformer.h"),
    "gpt_neox": "gpt_neox.layers",
    "opt": "model.decoder.layers",
}
MIDDLES = {
    **dict.fromkeys(FAMILIES, "post_attention_layernorm"),
    **dict.fromkeys(["gemma2", "gemma3_text"], "pre_feedforward_layernorm"),
    **dict.fromkeys(["olmo2", "olmo3"], "mlp"),
    "gpt2": "ln_2",
    "opt": "final_layer_norm",
}
ROUTERS = {
    **dict.fromkeys(["deepseek_v3", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe"], "mlp.gate"),
    "gpt_oss": "mlp.router",
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_measured_exactly(name):
    model = family(name)
    subject = Subject(model)
    with subject.frozen():
        (trace,) = Engine(subject, Sequences.of(tokens(count=2, vocab=97))).record()
        assert trace.depth == 6
        assert all(check.passed for check in canaries.check(subject, trace).values())
        for visit in (0, 3, 5):
            last, logits = hooked_skip(model, subject.layers, visit, trace.batch.ids)
            assert torch.equal(replay(trace, skip(visit)), last)
            assert not torch.equal(last, trace.final)  # the layer matters
            torch.testing.assert_close(subject.read_out(last), logits, rtol=1e-5, atol=1e-6)
        logits = model(trace.batch.ids, use_cache=False).logits
        torch.testing.assert_close(subject.read_out(trace.final), logits, rtol=1e-5, atol=1e-6)
        normed = model.get_submodule(subject.structure.final_norm)(trace.final)
        assert not torch.allclose(normed, trace.final, rtol=0.1)


def hooked_skip(model, layers, visit, ids):
    """The last residual state and the logits of a full forward in which a hook skips one layer."""
    states = []

    def passing(module, args, output):
        rest = output[1:] if isinstance(output, tuple) else None
        state = args[0] if module is layers[visit] else output if rest is None else output[0]
        states.append(state.clone())
        return state if rest is None else (state, *rest)

    handles = [layer.register_forward_hook(passing) for layer in layers]
    logits = model(ids, use_cache=False).logits
    for handle in handles:
        handle.remove()
    return states[-1], logits


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_understood(name):
    model = family(name)
    subject = Subject(model)
    found = subject.structure.describe()
    assert found["layers"] == [LISTS[name]]
    assert subject.layers == list(model.get_submodule(LISTS[name]))
    assert model.get_submodule(found["head"]) is model.get_output_embeddings()
    assert found["middle"] == ([] if name in PARALLEL else [MIDDLES[name]])
    assert ("parallel" in (found["no_middle"] or "")) == (name in PARALLEL)
    assert found["router"] == ([ROUTERS[name]] if name in ROUTERS else [])
    assert (found["num_experts"], found["top_k"]) == ((8, 2) if name in ROUTERS else (None, None))
    dense = [not inside.router for inside in subject.structure.inside]
    assert dense == ([True] + [False] * 5 if name == "deepseek_v3" else [name not in ROUTERS] * 6)


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - PARALLEL))
def test_branches_are_what_a_layer_adds(name):
    """Silent second branch: the layer gives the state between them. Both silent: it gives its input."""
    model = family(name)
    subject, seen = Subject(model), []
    layer, branches = subject.layers[1], subject.structure.inside[1].branches
    layer.register_forward_hook(lambda _, args, output: seen.append((args[0], state_of(output))))
    reader = layer.get_submodule(branches.middle)
    reader.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append([*args, *kwargs.values()][0]), with_kwargs=True
    )
    with torch.no_grad(), silent(layer, [branches.ffn]):
        model(tokens(count=2, vocab=97), use_cache=False)
    middle, (before, after) = seen
    assert torch.equal(middle.view_as(after), after)
    assert not torch.allclose(before, after, rtol=1e-2)
    with torch.no_grad(), silent(layer, [branches.mixer, branches.ffn]):
        model(tokens(count=2, vocab=97), use_cache=False)
    assert torch.equal(*seen[-1])


def test_the_model_is_left_as_it_was():
    model = family("falcon").train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    subject = Subject(model)
    subject.read_out(torch.randn(1, 7, 32))
    assert all(module.training for module in model.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    for module in model.modules():
        assert "forward" not in vars(module)
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_every_state_is_read_alike_whatever_its_shape():
    subject = Subject(family("gemma2"))
    states = 3 * torch.randn(3, 11, 32)
    with torch.no_grad():
        together = subject.read_out(states)
        single = torch.stack(
            [subject.read_out(row[None, t : t + 1])[0, 0] for row in states for t in range(11)]
        )
    torch.testing.assert_close(together.flatten(0, 1), single, rtol=1e-5, atol=1e-5)
    assert float(together.abs().max()) <= 30.0  # the model's own soft cap
