"""Recomputing in the backward pass changes no value, no gradient, no expert load, and counts nothing twice."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from depthkit.model.registries import CHECKPOINTING
from tests.model.loops.written import segments
from tests.models import make_ids, make_model, redraw

MIXER = {"kind": "gqa", "num_heads": 2, "num_kv_heads": 1}
POLICIES = {"inject": "convex", "carry": "mean", "readout": "weighted", "loop_embedding": True}
KINDS = ["none", "block", {"kind": "every_k", "k": 3}, {"kind": "every_k", "k": 100}, "selective"]


def set_checkpointing(model, setting):
    setting = {"kind": setting} if isinstance(setting, str) else setting
    config = CHECKPOINTING.get(setting["kind"]).Config(**setting)
    model.checkpointing = config.component(config)
    return model


def build(setting="none", core=POLICIES, loops=3, **model):
    ffn = {"kind": "moe", "num_experts": 4, "hidden_dim": 8, "bias_rate": 0.1, "router": "per_loop"}
    blocks = {"dense": {"mixer": MIXER, "ffn": ffn}}
    made = make_model(segments=segments(core, loops), **{"blocks": blocks, "regulators": ["lns"], **model})
    return set_checkpointing(redraw(made), setting)


def measure(model, observe=None):
    ids, targets = make_ids(3, 8), make_ids(3, 8, seed=1)
    targets[1, 4:] = -100
    output = model(ids, targets, step=torch.tensor(3), observe=observe)
    names, parameters = zip(*model.named_parameters(), strict=True)
    return output, dict(zip(names, torch.autograd.grad(output.loss, parameters), strict=True))


def alike(setting, **kwargs):
    (plain, expected), (output, gradients) = (measure(build(s, **kwargs)) for s in ("none", setting))
    assert torch.equal(output.hidden, plain.hidden)
    assert torch.equal(output.loss, plain.loss)
    assert len(output.aux) == len(plain.aux)
    for a, b in zip(output.aux, plain.aux, strict=True):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-6, atol=1e-9, msg=name)


def test_every_kind_is_tested_and_documented():
    kinds = {setting if isinstance(setting, str) else setting["kind"] for setting in KINDS}
    assert kinds == set(CHECKPOINTING.names())
    assert all(CHECKPOINTING.get(kind).equation for kind in kinds - {"none"})


@pytest.mark.parametrize("setting", KINDS, ids=str)
@pytest.mark.parametrize("stream", ["single", "hyper", "embedding_skip"])
def test_values_loads_and_gradients_stay(setting, stream):
    alike(setting, stream=stream)


@pytest.mark.parametrize("setting", KINDS, ids=str)
def test_random_gains_are_the_same_in_the_recomputation(setting):
    alike(setting, regulators=["layer_drop"])


@pytest.mark.parametrize("setting", KINDS, ids=str)
def test_cut_loops_and_random_states_stay(setting):
    core = {**POLICIES, "state_init": "normal", "inject": "linear", "out_norm": True}
    alike(setting, core=core, loops={"kind": "fixed", "mean": 4, "backprop": 2})


@pytest.mark.parametrize("setting", KINDS, ids=str)
def test_observing_changes_nothing(setting):
    seen = []
    _, plain = measure(build(setting))
    _, observed = measure(build(setting), lambda visit, before, after: seen.append(after))
    assert len(seen) == 8
    for name, gradient in plain.items():
        torch.testing.assert_close(observed[name], gradient, rtol=1e-6, atol=1e-9, msg=name)


class Count(TorchDispatchMode):
    """How often each operation runs."""

    def __init__(self):
        super().__init__()
        self.calls = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls[function] = self.calls.get(function, 0) + 1
        return function(*args, **(kwargs or {}))


def backward_calls(setting, operation):
    """Calls of an operation in the backward pass, less those without recomputation."""
    found = []
    for each in ("none", setting):
        model = build(each, core={})
        loss = model(make_ids(), make_ids()).loss
        with Count() as counter:
            loss.backward()
        found.append(counter.calls.get(operation, 0))
    return found[1] - found[0]


def test_blocks_are_computed_again_and_selective_keeps_products():
    product, expert = torch.ops.aten.mm.default, torch.ops.depthkit.grouped_linear.default
    linears = 8 * (4 + 1)  # q, k, v, o and the router of 8 visits
    assert backward_calls("block", product) == linears
    assert backward_calls({"kind": "every_k", "k": 3}, product) == linears
    assert backward_calls("selective", product) == 0
    assert backward_calls("block", expert) == 8 * 3
    assert backward_calls("selective", expert) == 0
    assert backward_calls("selective", torch.ops.aten.silu.default) > 0


class Kept:
    """Counts elements that autograd saves in a forward, outside what is recomputed."""

    def __init__(self):
        self.elements = 0

    def pack(self, tensor):
        self.elements += tensor.numel()
        return tensor


def saved(setting):
    kept, model = Kept(), build(setting, core={}, loops=6)
    with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda tensor: tensor):
        model(make_ids(4, 16), make_ids(4, 16))
    return kept.elements


def test_less_is_kept():
    everything, block, several = saved("none"), saved("block"), saved({"kind": "every_k", "k": 4})
    assert block < everything / 3
    assert several < everything / 3


def test_in_evaluation_nothing_is_set_up_for_a_backward_pass():
    for setting in KINDS:
        model, ids = build(setting).eval(), make_ids()
        with torch.no_grad():
            hidden = model(ids).hidden
        assert torch.equal(hidden, build().eval()(ids).hidden)
        assert not hidden.requires_grad


def test_a_cache_is_not_recomputed_into():
    """Groups of visits are single without gradients, so a cache slot is written once a visit."""
    from depthkit.model.cache import Cache

    model, ids, cache = build({"kind": "every_k", "k": 3}).eval(), make_ids(), Cache()
    with torch.no_grad():
        torch.testing.assert_close(model(ids, cache=cache).hidden, model(ids).hidden)
    assert cache.length == 9
