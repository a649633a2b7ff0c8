"""What checkpointing keeps lies side by side, and nothing else about it changes."""

import torch

from depthkit.model.slab import Slab


def test_kept_tensors_lie_side_by_side_in_one_block_of_memory():
    slab = Slab(3)
    kept = [slab.keep(torch.full((2, 5), float(i), requires_grad=True) * 1) for i in range(3)]
    assert [x.data_ptr() - kept[0].data_ptr() for x in kept] == [0, 40, 80]
    assert [x.unique().tolist() for x in kept] == [[0.0], [1.0], [2.0]]


def test_gradients_pass_through_and_a_later_state_does_not_invalidate_an_earlier_one():
    slab, x = Slab(2), torch.randn(3, 4, requires_grad=True)
    first = slab.keep(x * 2)
    kept_for_backward = first.square()  # saves `first`
    second = slab.keep(first + 1)
    (kept_for_backward.sum() + second.sum()).backward()
    torch.testing.assert_close(x.grad, 8 * x.detach() + 2)


def test_states_of_several_tensors_of_several_kinds():
    slab = Slab(2)
    for start in (0.0, 10.0):
        state = [torch.full((2,), start + i, requires_grad=True) * 1 for i in range(3)]
        wide = torch.zeros(4, dtype=torch.float64, requires_grad=True) + start
        kept = slab.keep((*state, wide))
        assert [x[0].item() for x in kept] == [start, start + 1, start + 2, start]
        assert len({x.data_ptr() for x in kept}) == 4


def test_what_has_no_gradient_is_left_where_it_is():
    x = torch.zeros(3)
    assert Slab(1).keep((x, None))[0] is x


def test_a_transposed_state_keeps_its_values():
    x = (torch.arange(6.0).reshape(2, 3).requires_grad_() * 1).T
    kept = Slab(1).keep(x)
    assert kept.is_contiguous()
    assert kept.tolist() == x.tolist()
