"""Ranks that share a batch, each weighted by its tokens, have together the losses of one process."""

import pytest
import torch

from tests.model.ffns.written import ids, inputs, make

MASK = torch.tensor([[True] * 7, [True] * 3 + [False] * 4, [False] * 7, [True] * 2 + [False] * 5])
SPLITS = {"uneven": (1, 3), "one without tokens": (2, 1, 1), "one has it all": (4,)}
MEANS = ("loss/balance", "loss/router_z", "balance", "entropy")


def in_one_process(branch, h, mask):
    return branch(h, branch.prepare(ids(h), mask))[1]


def of_ranks(branch, h, mask, split):
    """The `aux` of every rank, and its weight: its share of the tokens that count."""
    parts = list(zip(h.split(split), mask.split(split), strict=True))
    counts = []

    def run(reduce):
        branch.reduce_over_ranks = reduce
        return [in_one_process(branch, *part) for part in parts]

    run(lambda counted: counts.append(counted) or counted)
    if counts:
        assert len(counts) == len(split), "one question a rank and visit"
        assert not any(tensor.requires_grad for tensor in counts)
    return run(lambda counted: sum(counts)), [part.sum() / mask.sum() for _, part in parts]


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("scope", ["sequence", "batch"])
def test_shares_sum_to_the_whole(scope, top_k, split):
    branch, h = make(scope=scope, top_k=top_k, balance=0.3, z_loss=0.7), inputs(4)
    whole = in_one_process(branch, h, MASK)
    ranks, weights = of_ranks(branch, h, MASK, split)
    for name in MEANS:
        total = sum(w * aux[name] for w, aux in zip(weights, ranks, strict=True))
        torch.testing.assert_close(total, whole[name], rtol=1e-6, atol=1e-9)
        if name.startswith("loss/"):
            variables = (h, branch.router.weight)
            pairs = (
                torch.autograd.grad(value, variables, retain_graph=True) for value in (total, whole[name])
            )
            for a, b in zip(*pairs, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)
    assert torch.equal(sum(aux["load"] for aux in ranks), whole["load"])
    assert torch.equal(torch.cat([aux["experts"] for aux in ranks]), whole["experts"])


def test_without_the_other_ranks_the_loss_of_a_batch_is_another():
    branch, h = make(scope="batch"), inputs(4)
    whole, ranks = in_one_process(branch, h, MASK), [in_one_process(branch, h[:1], MASK[:1])]
    ranks.append(in_one_process(branch, h[1:], MASK[1:]))
    total = sum(w * aux["balance"] for w, aux in zip((7 / 12, 5 / 12), ranks, strict=True))
    assert abs(total - whole["balance"]) > 1e-2


def test_within_sequences_no_rank_is_asked():
    branch, h = make(scope="sequence"), inputs(4)
    branch.reduce_over_ranks = lambda counted: pytest.fail("asked")
    in_one_process(branch, h, MASK)


def test_a_batch_without_counted_tokens_has_no_loss():
    branch, h = make(scope="batch"), inputs(2)
    nothing, counts = torch.zeros(2, 7, dtype=torch.bool), []
    branch.reduce_over_ranks = lambda counted: counts.append(counted) or counted
    assert in_one_process(branch, h, nothing)["balance"] == 0
    assert len(counts) == 1
