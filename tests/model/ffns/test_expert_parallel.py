"""Experts spread over ranks compute what one process with all of them does."""

import pytest
import torch
import torch.distributed as dist

from depthkit.kernels.experts.parallel import slice_of
from depthkit.model import Transformer
from depthkit.model.ffns.moe import expert_parameters, shard_experts
from depthkit.model.registries import CHECKPOINTING
from tests.kernels import parallel_cases
from tests.models import make_config, make_ids, make_model, redraw
from tests.ranks import run_in_ranks

MIXER = {"kind": "gqa", "num_heads": 2, "num_kv_heads": 1}
MOE = {"kind": "moe", "num_experts": 4, "hidden_dim": 8, "shared_experts": 1, "router": "per_loop"}


def looped(checkpointing="none", **settings):
    dense = {"mixer": MIXER, "ffn": {**MOE, **settings}}
    model = redraw(make_model(loops=2, blocks={"dense": dense}))
    model.checkpointing = CHECKPOINTING.get(checkpointing)(None)
    return model


def check_model(checkpointing):
    """A looped model over a batch of which every rank has its own sequences."""
    rank, size = dist.get_rank(), dist.get_world_size()
    ids, rows = make_ids(3 * size, 7), slice(3 * rank, 3 * rank + 3)
    whole, part = looped(), looped(checkpointing)
    names = expert_parameters(part)
    shard_experts(part, dist.group.WORLD)
    assert expert_parameters(part) == names
    wanted = whole(ids, ids)
    wanted.loss.backward()
    output = part(ids[rows], ids[rows])
    torch.testing.assert_close(output.hidden, wanted.hidden[rows], rtol=1e-5, atol=1e-6)
    (output.loss / size).backward()
    own = slice_of(4, rank, size)
    for (name, a), (_, b) in zip(part.named_parameters(), whole.named_parameters(), strict=True):
        if name not in names:
            dist.all_reduce(a.grad)
        torch.testing.assert_close(
            a.grad, b.grad[own] if name in names else b.grad, rtol=1e-4, atol=1e-6, msg=name
        )


def check_all():
    parallel_cases.check_backends()
    parallel_cases.check_nothing_to_do()
    parallel_cases.check_recomputed()
    parallel_cases.check_autocast()
    parallel_cases.check_second_derivatives()
    for checkpointing in ("none", "block", "selective"):
        check_model(checkpointing)


def check_four():
    parallel_cases.check_backends(8)
    parallel_cases.check_nothing_to_do(4)
    parallel_cases.check_recomputed(8)
    parallel_cases.check_autocast(8)
    check_model("block")


def test_two_ranks_compute_what_one_process_does(tmp_path):
    run_in_ranks(check_all, 2, tmp_path)


@pytest.mark.slow
def test_four_ranks_compute_what_one_process_does(tmp_path):
    run_in_ranks(check_four, 4, tmp_path)


class Group:
    """As much of a process group as sharding asks for."""

    def __init__(self, rank, size):
        self.rank, self.size = (lambda: rank), (lambda: size)


def test_a_rank_keeps_its_slices_with_their_names_roles_and_rules():
    whole, part = looped(), looped()
    part.layers[0].ffn.branch.up.requires_grad_(False)
    names = expert_parameters(whole)
    assert names == {
        f"layers.{layer}.ffn.branch.{matrix}" for layer in (0, 1) for matrix in ("gate", "up", "down")
    }
    shard_experts(part, Group(1, 2))
    assert not part.layers[0].ffn.branch.up.requires_grad
    for a, b in zip(part.named_roles(), whole.named_roles(), strict=True):
        assert (a.name, a.role, a.rule) == (b.name, b.role, b.rule)
        kept = b.parameter[2:] if a.name in names else b.parameter
        assert torch.equal(a.parameter, kept)
        assert a.parameter.untyped_storage().nbytes() == kept.numel() * 4


def test_slices_are_contiguous_and_cover_all_experts():
    assert [slice_of(6, rank, 3) for rank in range(3)] == [slice(0, 2), slice(2, 4), slice(4, 6)]


def test_experts_that_cannot_be_divided_are_refused_and_nothing_is_changed():
    dense, odd = ({"mixer": MIXER, "ffn": {**MOE, "num_experts": n}} for n in (4, 6))
    segments = [{"name": "core", "pattern": ["dense", "odd"]}]
    model = Transformer(make_config(blocks={"dense": dense, "odd": odd}, segments=segments))
    message = (
        r"layers\.1\.ffn\.branch \(ffn: \{kind: moe, num_experts: 6, top_k: 2\}\): "
        "6 experts cannot be divided among 4 ranks; they can among 1, 2, 3, 6"
    )
    with pytest.raises(ValueError, match=message):
        shard_experts(model, Group(0, 4))
    assert [layer.ffn.branch.up.shape[0] for layer in model.layers] == [4, 6]


def test_spread_experts_are_not_compiled():
    model = looped()
    shard_experts(model, Group(0, 1))
    model.compile_blocks("eager")
    with pytest.raises(
        Exception, match=r"experts spread over ranks cannot be compiled: set train\.compile: false"
    ):
        model.token_losses(make_ids(), make_ids())
