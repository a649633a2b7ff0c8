"""Loops cut off from the backward pass: gradients against a forward that detaches by hand; FLOPs."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from depthkit.model import Transformer, account
from depthkit.model.registries import CHECKPOINTING, STREAMS
from tests.model.loops.written import FULL, ids_for, leaves, looped, moe, once, probe, segments, whole
from tests.models import make_config, make_ids, make_model, redraw

LOOPS, KEPT = 4, 2
CUT = {"kind": "fixed", "mean": LOOPS, "backprop": KEPT}


def by_hand(model, ids):
    """`FULL` with the first loops detached, and their inputs too, but not what is injected."""

    def core(e, step, p):
        unit = lambda x: x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()  # noqa: E731
        lam, h, y = p["inject.strength"], e, []
        for t in range(LOOPS):
            x = (h + lam[t] * e) / (1 + lam[t]) if t else h
            x = x + p["carry.strength"][t - 1] * unit(sum(y) / t) if t else x
            h = step(x + p["embedding"][t])
            h = h.detach() if t < LOOPS - KEPT else h
            y.append(h)
        exps = [(a + 4 * (t == LOOPS - 1)).exp() for t, a in enumerate(p["readout.logits"])]
        return sum(w / sum(exps) * x for w, x in zip(exps, y, strict=True))

    return whole(model, ids, core)


def test_gradients_are_those_of_detaching_by_hand():
    model = looped(FULL, loops=CUT, std=0.2)
    ids = ids_for(model)
    actual, expected = model(ids).hidden, by_hand(model, ids)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)
    found, stated = leaves(model, probe(actual)), leaves(model, probe(expected))
    for name, gradient in stated.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-11, msg=name)
    kept = found["recurrences.core.inject.strength"] != 0
    assert kept.tolist() == [False, False, True, True]
    assert (found["recurrences.core.embedding"] != 0).any(1).tolist() == [False, False, True, True]
    assert (found["recurrences.core.carry.strength"] != 0).tolist() == [False, True, True]
    assert (found["recurrences.core.readout.logits"] != 0).all()


@pytest.mark.parametrize("stream", [name for name in STREAMS.names() if name != "attention_residual"])
def test_injection_gives_what_comes_before_a_gradient_in_every_stream(stream):
    core = {"inject": "linear", "state_init": "normal"}
    gradients = {}
    for name, loops in {"cut": CUT, "all": LOOPS}.items():
        model, ids = redraw(make_model(segments=segments(core, loops), stream=stream)), make_ids()
        found = leaves(model, model(ids, ids).loss, skip=())
        gradients[name] = found
        for part in ("embed.weight", "layers.0.mixer.branch.q.weight", "layers.0.ffn.branch.down.weight"):
            assert (found[part] != 0).any(), part
    assert not torch.allclose(gradients["cut"]["embed.weight"], gradients["all"]["embed.weight"])


def test_the_entry_of_parallel_streams_has_the_gradient_of_its_injections_alone():
    """h_4 = h_3 + lambda_4 e, ... : by hand from the entry on, the state of the cut loops detached."""
    model = looped({"inject": "add"}, loops=CUT, stream="hyper", std=0.1)
    ids = ids_for(model)
    states, x = [], []
    for layer in model.layers:
        layer.register_forward_hook(lambda module, args, output: states.append((args[0], output[0])))
    hidden = model(ids).hidden
    entry, last_cut = states[0][1], states[2 * (LOOPS - KEPT)][1]
    assert entry.requires_grad
    assert not last_cut.requires_grad
    start = states[2 * (LOOPS - KEPT) + 1][0]
    strength = model.recurrences["core"].inject.strength[LOOPS - KEPT]
    expected = last_cut + strength * entry.sum(-2, keepdim=True) / 4
    torch.testing.assert_close(start, expected)
    (through,) = torch.autograd.grad(start.sum(), entry, retain_graph=True)
    torch.testing.assert_close(through, torch.ones_like(through) * strength.detach())
    x.append(hidden)
    assert (torch.autograd.grad(probe(x[0]), entry)[0] != 0).all()


@pytest.mark.parametrize("kind", CHECKPOINTING.names())
def test_recomputation_leaves_gradients_of_cut_loops_as_they_are(kind):
    gradients = []
    for checkpointing in ("none", kind):
        model, ids = redraw(make_model(segments=segments(FULL, CUT), stream="hyper", **moe())), make_ids()
        config = CHECKPOINTING.get(checkpointing).Config()
        model.checkpointing = config.component(config)
        gradients.append(leaves(model, model(ids, ids).loss, skip=()))
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-6, atol=1e-9, msg=name)


@pytest.mark.parametrize("loops", [1, KEPT, LOOPS, 6])
def test_the_last_loops_are_kept_at_any_count(loops):
    model, ids = redraw(make_model(segments=segments({"inject": "linear"}, CUT))), make_ids()
    states = []
    model(ids, observe=lambda visit, before, after: states.append((visit, after)), loops=loops)
    graphs = {visit.key.loop: after.requires_grad for visit, after in states if visit.key.segment == "core"}
    assert [graphs[t] for t in range(loops)] == [t >= loops - KEPT for t in range(loops)]
    assert states[-1][1].requires_grad


def test_cut_loops_have_no_part_in_the_auxiliary_loss():
    model, ids = redraw(make_model(segments=segments({"inject": "add"}, CUT), **moe())), make_ids()
    output = model(ids, ids)
    kept = [
        aux
        for visit, aux in zip(output.visits, output.aux, strict=True)
        if visit.key.segment != "core" or visit.key.loop >= LOOPS - KEPT
    ]
    assert len(kept) == 2 + 2 * KEPT
    extra = sum(torch.stack([aux[name] for aux in kept]).mean() for name in ("loss/balance", "loss/router_z"))
    torch.testing.assert_close(output.loss - output.cross_entropy, extra, rtol=1e-4, atol=1e-6)
    assert all("load" in aux for aux in output.aux)


def counted(config, backward=False):
    """FLOPs of a token, counted by torch."""
    model, ids = Transformer(config).requires_grad_(backward), make_ids()
    with FlopCounterMode(display=False) as counter:
        logits = model.logits(model(ids).hidden)
        if backward:
            probe(logits).backward()
    return counter.get_total_flops() / ids.numel()


def eager(**ffn):
    """Attention whose products torch can count, and a feed-forward."""
    mixer = {"kind": "gqa", "num_heads": 2, "num_kv_heads": 1, "backend": "eager"}
    return {"blocks": {"dense": {"mixer": mixer, "ffn": ffn or "swiglu"}}}


MOE = {"kind": "moe", "num_experts": 4, "hidden_dim": 8}
COUNTED = {
    "dense": ({}, eager()),
    "linear": ({"inject": "linear", "out_norm": True}, eager()),
    "full": (FULL, eager()),
    "moe": ({"inject": "linear"}, eager(**MOE)),
    "loop backend": ({}, eager(**MOE, backend="loop", shared_experts=2)),
    "per_loop": ({}, eager(**MOE, router="per_loop", expert="gelu", top_k=1)),
}


@pytest.mark.parametrize("name", COUNTED)
def test_flops_equal_torchs_count(name):
    core, settings = COUNTED[name]
    config = make_config(segments=segments(core), **settings)
    # mixing outputs in a carry or read-out is a product for torch, and of no weight here
    assert counted(config) == pytest.approx(account(config, 9).executed_flops_per_token, rel=2e-3)
    if name != "full":
        assert counted(config) == account(config, 9).executed_flops_per_token


@pytest.mark.parametrize("name", ["linear", "moe"])
def test_cut_loops_save_their_backward(name):
    """A backward is two forwards; torch counts one less for what needs no gradient of its input."""
    core, settings = COUNTED[name]
    core = {"inject": "linear", "state_init": "normal", **core}
    whole_run, cut = (make_config(segments=segments(core, loops), **settings) for loops in (LOOPS, CUT))
    counts = account(cut, 9)
    share = LOOPS - KEPT
    core_flops = account(make_config(segments=segments(core, LOOPS + 1), **settings), 9).flops_per_token
    loop = core_flops - account(whole_run, 9).flops_per_token
    assert counts.truncated_flops_per_token == pytest.approx(share * loop)
    assert account(whole_run, 9).truncated_flops_per_token == 0
    assert counts.train_flops_per_token == pytest.approx(3 * counts.flops_per_token - 2 * share * loop)
    saved = counted(whole_run, backward=True) - counted(cut, backward=True)
    dense_loop = counted(make_config(segments=segments(core, LOOPS + 1), **settings)) - counted(whole_run)
    assert saved == pytest.approx(2 * share * dense_loop, rel=0.1)


def test_a_longest_sampled_run_is_cut_at_the_same_place():
    sampled = {"kind": "poisson_lognormal", "mean": 4, "backprop": 2}
    model = looped(FULL, loops=sampled)
    assert len(model.recurrences["core"].inject.strength) == 16
    ids = ids_for(model)
    found = leaves(model, probe(model(ids, loops=7).hidden))
    assert (found["recurrences.core.inject.strength"] != 0).nonzero().flatten().tolist() == [5, 6]
    assert torch.equal(model(ids, loops=1).hidden, model(ids, loops={"core": 1}).hidden)
    plain = looped({"inject": "add", "state_init": "embedding"}, loops=sampled)
    assert torch.equal(
        plain(ids, loops=1).hidden,
        once(plain, ids, "coda", once(plain, ids, "core", once(plain, ids, "prelude", plain.embed(ids)))),
    )


@pytest.mark.parametrize("name", ["full", "linear", "per_loop", "shared_bias"])
def test_active_parameters_are_those_a_token_touches_and_executed_counts_every_use(name):
    ffn = {"router": name} if name in {"per_loop", "shared_bias"} else {}
    core = {"linear": {"inject": "linear", "out_norm": True}, "full": FULL}.get(
        name, {"loop_embedding": True}
    )
    model = Transformer(make_config(segments=segments(core, LOOPS), **moe(**ffn)))
    size = lambda module: sum(p.numel() for p in module.parameters())  # noqa: E731
    asleep = (4 - 2) * 3 * 16 * 8  # experts of a layer that a token does not choose
    counts, outside = account(model.config, 9), size(model.embed) - 16
    assert counts.active == size(model) - outside - len(model.layers) * asleep
    visits = sum(size(model.layers[v.layer]) - asleep for v in model.plan.visits)
    policies = size(model.recurrences)
    again = (LOOPS - 1) * 2 * 16 * 16 if name == "linear" else 0
    rest = 16 + size(model.head) + size(model.final_norm) + size(model.schedules)
    assert counts.executed == rest + visits + policies + again
