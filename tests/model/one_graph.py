"""What compiling the blocks of any model must come to."""

import torch
from torch._dynamo.testing import CompileCounter


def check_one_graph_a_grad_mode(model, eager, ids):
    """Both have the same weights; `model` is compiled here, and computes the same bits with a graph a mode."""
    counter = CompileCounter()
    model.compile_blocks(counter)
    loss = model(ids, ids).loss
    loss.backward()
    assert counter.frame_count == 1
    with torch.no_grad():
        assert torch.equal(model(ids).hidden, eager(ids).hidden)
    assert counter.frame_count == 2
    assert torch.equal(loss, eager(ids, ids).loss)
