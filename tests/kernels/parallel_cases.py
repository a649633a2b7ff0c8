"""What a rank checks of experts spread over its group, against all of them in one process."""

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from depthkit.kernels.experts import backend
from depthkit.kernels.experts.parallel import parallel, slice_of
from tests.kernels.expert_cases import assert_close, make_case, with_gradients


def spread(name, shares):
    """A backend whose rows and experts are this rank's part of whole tensors; zero where others' rows are.

    Rank r has `shares[r]` of the tokens. Outputs and gradients of all ranks sum to those of one process.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    start, tokens = sum(shares[:rank]), shares[rank]
    compute = parallel(backend(name), dist.group.WORLD)

    def of_whole(h, index, weights, gate, up, down):
        rows, own = slice(start, start + tokens), slice_of(len(up), rank, size)
        y = compute(
            h[rows], index[rows], weights[rows], gate if gate is None else gate[own], up[own], down[own]
        )
        return F.pad(y, (0, 0, start, len(h) - start - tokens))

    return of_whole


def summed(found):
    """Every named tensor summed over ranks, in full precision."""
    found = {
        name: tensor.float() if tensor.dtype is torch.bfloat16 else tensor for name, tensor in found.items()
    }
    for tensor in found.values():
        dist.all_reduce(tensor)
    return found


def check(name, case, shares, tolerance=1e-6):
    whole = with_gradients(backend(name), case)
    assert_close(summed(with_gradients(spread(name, shares), case)), whole, tolerance)


def uneven(tokens):
    """Shares of ranks: the first has many, the second none when there are more than two."""
    size = dist.get_world_size()
    return [tokens - 3 * (size - 1), 3] if size == 2 else [tokens - 3 * (size - 2), 0] + [3] * (size - 2)


def check_backends(experts=6):
    for name in ("grouped", "loop"):
        for gated, top_k in ((True, 1), (False, 2), (True, 4)):
            case = make_case(tokens=15, top_k=top_k, gated=gated, experts=experts)
            check(name, case, uneven(15))
    check("loop", make_case(tokens=9, experts=experts).double(), uneven(9), 1e-14)


def check_nothing_to_do(experts=6):
    """All tokens on one rank, all choices on another's experts, no tokens at all."""
    size = dist.get_world_size()
    case = make_case(tokens=8, top_k=2, experts=experts)
    check("grouped", case, [0] * (size - 1) + [8])
    own = experts // size
    for first in (0, experts - own):
        index = (case.index % own) + first
        if own > 1:
            index[:, 1] = first + (index[:, 0] - first + 1) % own
        for name in ("grouped", "loop"):
            check(name, case._replace(index=index), [8] + [0] * (size - 1))
    nothing = with_gradients(spread("grouped", [0] * size), make_case(tokens=0, experts=experts))
    assert not any(nothing[matrix].any() for matrix in ("gate", "up", "down"))


def check_recomputed(experts=6):
    case, compute = make_case(tokens=11, experts=experts), spread("grouped", uneven(11))
    again = with_gradients(lambda *tensors: checkpoint(compute, *tensors, use_reentrant=False), case)
    for key, tensor in with_gradients(compute, case).items():
        assert torch.equal(tensor, again[key]), key


def check_autocast(experts=6):
    """Products and journeys in bf16, sums in fp32; only the numbers of rows travel beside."""
    case, seen, exchange = make_case(tokens=15, experts=experts), [], dist.all_to_all_single
    for name in ("grouped", "loop"):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            whole = with_gradients(backend(name), case)
            dist.all_to_all_single = lambda out, *rest, **named: (
                seen.append(out.dtype),
                exchange(out, *rest, **named),
            )
            try:
                got = with_gradients(spread(name, uneven(15)), case)
            finally:
                dist.all_to_all_single = exchange
        assert {tensor.dtype for tensor in got.values()} == {torch.float32}
        assert_close(summed(got), whole, 8e-3)
    assert seen == [torch.int64, *[torch.bfloat16] * 4] * 2


def check_second_derivatives(experts=4):
    def second(compute, case):
        x = case.h.detach().clone().requires_grad_()
        y = compute(x, *case[1:])
        (first,) = torch.autograd.grad((y**2).sum(), x, create_graph=True)
        return {"h": torch.autograd.grad((first**2).sum(), x)[0]}

    case = make_case(tokens=9, experts=experts).double()
    shares = uneven(9)
    assert_close(summed(second(spread("loop", shares), case)), second(backend("loop"), case), 1e-12)
