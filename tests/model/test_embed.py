"""The scale of the token embedding."""

import pytest
import torch

from depthkit.model import Transformer
from depthkit.model.fold import fold
from tests.models import make_config, make_ids, make_model


@pytest.mark.parametrize(("scale", "factor"), [(3.0, 3.0), ("sqrt_dim", 4.0), (1, 1.0)])
def test_a_scale_multiplies_what_goes_in(scale, factor):
    plain, scaled = make_model(dim=16), make_model(dim=16, embed={"kind": "token", "scale": scale})
    with torch.no_grad():
        plain.embed.weight.mul_(factor)
    ids = make_ids()
    torch.testing.assert_close(scaled(ids).hidden, plain(ids).hidden)


def test_a_tied_head_reads_the_matrix_without_the_scale():
    model = make_model(
        dim=16, embed={"kind": "token", "scale": "sqrt_dim"}, head={"kind": "lm", "tied": True}
    )
    ids = make_ids()
    hidden = model(ids).hidden
    torch.testing.assert_close(model.logits(hidden), hidden @ model.embed.weight.T)
    model(ids, ids).loss.backward()
    assert (model.embed.weight.grad != 0).any()


def test_folding_keeps_it():
    model = make_model(dim=16, embed={"kind": "token", "scale": 2.5}, regulators=["lns"])
    ids = make_ids()
    torch.testing.assert_close(fold(model)(ids).hidden, model(ids).hidden)


@pytest.mark.parametrize("scale", [0.0, -1.0, "sqrt"])
def test_a_scale_that_makes_no_sense_is_refused(scale):
    with pytest.raises(ValueError, match="scale"):
        make_config(embed={"kind": "token", "scale": scale})


def test_no_scale_is_the_same_bit_for_bit():
    ids = make_ids()
    one = Transformer(make_config(embed={"kind": "token", "scale": 1.0}))
    assert torch.equal(one(ids).hidden, make_model()(ids).hidden)
