"""What the written-out statements of the streams share: a float64 model without norms, and its branches."""

import torch

from depthkit.model.walk import Inputs
from tests.models import make_ids, make_model, redraw


def double_model(stream, depth=3, loops=1, seed=1, **model):
    """Norms compute in fp32, so a float64 model has none; the stream is what is looked at."""
    built = make_model(
        depth=depth, loops=loops, stream=stream, norm="none", final_norm=False, dim=8, vocab=11, **model
    )
    return redraw(built, std=0.3, seed=seed).double()


def parameters(model):
    """The stream's parameters by their name in the bank, and the embedding."""
    bank = "schedules.stream_bank."
    return {name.removeprefix(bank): value for name, value in model.named_parameters()}


def branches(model, ids):
    """(visit, 0 or 1, branch as a function of its input) for every branch in the order of execution."""
    for visit in model.plan.visits:
        block = model.layers[visit.layer]
        contexts = block.prepare(Inputs(ids))
        for index, site in enumerate((block.mixer, block.ffn)):
            yield visit.index, index, lambda h, s=site, c=contexts[index]: s.branch(h, c)[0]


def ids_for(model):
    return make_ids(2, 5, model.vocab_size)


def assert_equal_with_gradients(model, written):
    """`written(model, ids)` is the whole forward as [B, T, D]; values and all gradients are compared."""
    ids = ids_for(model)
    actual, expected = model(ids).hidden, written(model, ids)
    assert actual.dtype == expected.dtype == torch.float64
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)
    probe = torch.randn(expected.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    names = [name for name, _ in model.named_parameters() if name != "head.weight"]
    values = [model.get_parameter(name) for name in names]
    pairs = zip(
        names,
        torch.autograd.grad((actual * probe).sum(), values),
        torch.autograd.grad((expected * probe).sum(), values),
        strict=True,
    )
    for name, a, b in pairs:
        assert a.abs().max() > 0, name
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")
