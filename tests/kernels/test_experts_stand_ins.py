"""The torch functions that serve where MegaBlocks' compiled parts are absent, each against plain Python."""

import pytest
import torch

from depthkit.kernels.experts.stand_ins import grouped_gemm, megablocks_ops

BINS = [2, 2, 5, 6]


def ints(values):
    return torch.tensor(values, dtype=torch.int32)


def test_sort_is_stable_and_says_where_keys_came_from():
    keys = [3, 1, 2, 1, 3, 0]
    x, sorted_keys, origin = ints(keys), ints([0] * 6), ints([0] * 6)
    megablocks_ops.sort(x, 2, sorted_keys, origin)
    assert sorted_keys.tolist() == sorted(keys)
    assert origin.tolist() == sorted(range(6), key=lambda i: keys[i])


@pytest.mark.parametrize("keys", [[3, 1, 1, 0], []])
def test_histogram(keys):
    counts = megablocks_ops.histogram(ints(keys), 5)
    assert counts.tolist() == [keys.count(e) for e in range(5)]
    assert counts.dtype is torch.int32


@pytest.mark.parametrize("dim", [0, 1])
def test_cumulative_sums(dim):
    x = ints([[1, 2, 3], [4, 5, 6]])
    inclusive, exclusive = torch.empty_like(x), torch.empty_like(x)
    megablocks_ops.inclusive_cumsum(x, dim, inclusive)
    megablocks_ops.exclusive_cumsum(x, dim, exclusive)
    for i in range(2):
        for j in range(3):
            before = x[:i, j] if dim == 0 else x[i, :j]
            assert exclusive[i, j] == before.sum()
            assert inclusive[i, j] == before.sum() + x[i, j]


def test_indices_of_a_block_diagonal_matrix():
    out = torch.empty(4 * 3, dtype=torch.int16)
    megablocks_ops.indices(ints([128, 128, 384, 512]), 128, 4, 3, out)
    owner = [0, 2, 2, 3]
    assert out.tolist() == [3 * e + column for e in owner for column in range(3)]


def test_replicate_and_its_derivative():
    x, out, back = torch.randn(2, 4), torch.empty(2, 6), torch.empty(2, 4)
    megablocks_ops.replicate_forward(x, ints(BINS), out)
    assert torch.equal(out, x[:, [0, 0, 2, 2, 2, 3]])
    grad = torch.randn(2, 6)
    megablocks_ops.replicate_backward(grad, ints(BINS), back)
    parts = [grad[:, a:b].sum(1) for a, b in zip([0, *BINS], BINS, strict=False)]
    torch.testing.assert_close(back, torch.stack(parts, 1))


def by_hand(a, b, sizes):
    return torch.cat([rows @ matrix for rows, matrix in zip(a.split(sizes), b, strict=True)])


def test_gmm_in_each_of_its_forms():
    sizes = [2, 0, 3, 1]
    a, b, grad = torch.randn(6, 5), torch.randn(4, 5, 3), torch.randn(6, 3)
    wanted, batch_sizes = by_hand(a, b, sizes), torch.tensor(sizes)
    for gmm in (grouped_gemm.ops.gmm, grouped_gemm.backend.gmm):
        torch.testing.assert_close(gmm(a, b, batch_sizes), wanted)
        torch.testing.assert_close(gmm(a, b.transpose(1, 2), batch_sizes, trans_b=True), wanted)
    outer = torch.stack([x.t() @ g for x, g in zip(a.split(sizes), grad.split(sizes), strict=True)])
    torch.testing.assert_close(grouped_gemm.backend.gmm(a, grad, batch_sizes, trans_a=True), outer)
    c = torch.empty(6, 3)
    assert grouped_gemm.backend.gmm(a, b, batch_sizes, c=c) is c
    torch.testing.assert_close(c, wanted)
