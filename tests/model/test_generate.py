import pytest
import torch

from depthkit.model.generate import Sampling, generate
from tests.models import make_ids, make_model, redraw

LOOPED = {"segments": [{"name": "core", "pattern": ["dense"], "repeat": 2, "loops": 2, "inject": "convex"}]}


@torch.no_grad()
def without_cache(model, ids, count, loops=None):
    for _ in range(count):
        chosen = model.logits(model(ids, loops=loops).hidden[:, -1]).argmax(-1, keepdim=True)
        ids = torch.cat([ids, chosen], 1)
    return ids[:, -count:]


@pytest.mark.filterwarnings("ignore:segment .core. was never trained")
@pytest.mark.parametrize("options", [{}, LOOPED], ids=["plain", "looped"])
@pytest.mark.parametrize("loops", [None, 3])
def test_likeliest_tokens_are_those_of_whole_forwards(options, loops):
    model = redraw(make_model(**options)).eval()
    if not options and loops:
        loops = None
    ids = make_ids(batch=2, time=5)
    made = torch.cat(list(generate(model, ids, 6, prompt_loops=loops, loops=loops)), 1)
    assert torch.equal(made, without_cache(model, ids, 6, loops))


def test_draws_follow_the_distribution_and_the_seed():
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]]).log_softmax(-1)
    generator = torch.Generator().manual_seed(0)
    sampling = Sampling(temperature=1.0)
    counts = torch.bincount(sampling.choose(logits.expand(5000, -1), generator).flatten(), minlength=4)
    torch.testing.assert_close(counts / 5000, logits[0].exp(), atol=0.03, rtol=0)
    two = Sampling(temperature=1.0, top_k=2).choose(logits.expand(500, -1), generator)
    assert set(two.flatten().tolist()) == {1, 2}
    model, ids = redraw(make_model()).eval(), make_ids(batch=1, time=3)
    runs = [torch.cat(list(generate(model, ids, 8, Sampling(1.0, seed=s))), 1) for s in (1, 1, 2)]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="temperature: -1 is below 0"):
        Sampling(temperature=-1)
    with pytest.raises(ValueError, match="top_k: 0"):
        Sampling(top_k=0)
