import pytest
import torch
from torch._dynamo.testing import CompileCounter

from tests.model.one_graph import check_one_graph_a_grad_mode
from tests.models import make_ids, make_model

# Dynamo itself looks at .grad of non-leaf tensors while tracing.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.mark.parametrize(("models", "limit"), [(3, 2), pytest.param(12, 8, marks=pytest.mark.slow)])
def test_many_models_in_one_process_compile_one_block_each_a_grad_mode(models, limit):
    """Three times as many compilations as dynamo allows for one piece of code; each model has its own."""
    with torch._dynamo.config.patch(recompile_limit=limit):
        for index in range(models):
            pair = (make_model(depth=6, loops=1 + index % 3, regulators=["lns"]) for _ in range(2))
            check_one_graph_a_grad_mode(*pair, make_ids())


def test_two_block_kinds_compile_twice():
    blocks = {kind: {"mixer": {"kind": "gqa", "num_heads": 2}, "ffn": kind} for kind in ("swiglu", "gelu")}
    segments = [{"name": "trunk", "pattern": ["swiglu", "gelu"], "repeat": 3}]
    model, counter = make_model(blocks=blocks, segments=segments), CompileCounter()
    model.compile_blocks(counter)
    model(make_ids())
    assert counter.frame_count == 2


def test_hooks_still_fire_on_compiled_blocks():
    model, fired = make_model(), []
    model.compile_blocks("eager")
    model.layers[1].register_forward_hook(lambda *_: fired.append(1))
    model(make_ids())
    assert fired == [1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # the compiler's own
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # dynamo's own
def test_inductor_agrees_with_eager():
    model, eager, ids = make_model(), make_model(), make_ids()
    model.compile_blocks()
    torch.testing.assert_close(model(ids, ids).loss, eager(ids, ids).loss)


@pytest.mark.parametrize(("backend", "fuses"), [("inductor", True), ("eager", False)])
def test_mixers_know_whether_a_compiler_fuses_what_they_do(backend, fuses):
    """Attention is chosen by it, and a backend that only runs the graph computes what eager does."""
    model = make_model()
    model.compile_blocks(backend)
    assert [model.block(layer).mixer.branch.compiled for layer in range(2)] == [fuses] * 2
    assert not make_model().block(0).mixer.branch.compiled
