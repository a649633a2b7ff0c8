"""MegaBlocks' own Triton kernels and layer, on the CPU in Triton's interpreter, against depthkit's experts.

Runs in an environment of its own: `make test-megablocks`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from depthkit.kernels.experts import backend, status
from tests.kernels.expert_cases import assert_close, assert_states_the_same, make_case, with_gradients

pytestmark = [
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="runs by `make test-megablocks`"),
    # not ours: from importing MegaBlocks, from its backward on a machine without a GPU, from Triton's interpreter
    pytest.mark.filterwarnings("ignore:User provided device_type of 'cuda'"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning"),
]
kinds = pytest.mark.parametrize("gated", [True, False], ids=["swiglu", "gelu"])


@kinds
@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("tokens", [1, 7, 16])
def test_output_and_gradients_equal_the_loop_and_the_statement(tokens, top_k, gated):
    case = make_case(tokens=tokens, top_k=top_k, gated=gated)
    assert_states_the_same("megablocks", case, 2e-6)
    assert_close(with_gradients(backend("megablocks"), case), with_gradients(backend("loop"), case), 2e-6)


def test_no_tokens_give_no_output_and_zero_gradients():
    got = with_gradients(backend("megablocks"), make_case(tokens=0))
    assert got["y"].shape == got["h"].shape == (0, 33)
    assert not any(got[matrix].any() for matrix in ("gate", "up", "down"))


def test_a_single_expert():
    case = make_case(tokens=3, top_k=1)
    case = case._replace(index=torch.zeros_like(case.index), gate=None, up=case.up[:1], down=case.down[:1])
    assert_close(with_gradients(backend("megablocks"), case), with_gradients(backend("loop"), case), 2e-6)


def test_bf16_equals_the_statement_on_the_same_rounded_inputs():
    case = make_case(tokens=7).of(torch.bfloat16)
    assert backend("megablocks")(*case).dtype is torch.bfloat16
    assert_states_the_same("megablocks", case, 2e-2)


def test_autocast_multiplies_in_bf16_and_sums_in_fp32():
    case = make_case(tokens=5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, wanted = (with_gradients(backend(name), case) for name in ("megablocks", "loop"))
    assert {tensor.dtype for tensor in got.values()} == {torch.float32}
    assert torch.equal(got["y"], wanted["y"])
    assert_close(got, wanted, 2e-2)


def test_checkpointing_changes_nothing():
    case, compute = make_case(tokens=5), backend("megablocks")
    again = with_gradients(lambda *tensors: checkpoint(compute, *tensors, use_reentrant=False), case)
    for key, tensor in with_gradients(compute, case).items():
        assert torch.equal(tensor, again[key]), key


def layer(case, gated, **options):
    """MegaBlocks' dropless layer with the case's weights; it stores `down` as `[E, F, D]`."""
    from megablocks.layers.arguments import Arguments
    from megablocks.layers.dmoe import ParallelDroplessMLP

    experts, hidden, width = case.up.shape
    arguments = Arguments(
        hidden_size=width,
        ffn_hidden_size=hidden,
        moe_num_experts=experts,
        moe_top_k=case.index.shape[1],
        bias=False,
        activation_fn=torch.nn.functional.silu if gated else torch.nn.functional.gelu,
        mlp_type="glu" if gated else "mlp",
        mlp_impl="grouped",
        fp16=False,
        device=torch.device("cpu"),
        **options,
    )
    made = ParallelDroplessMLP(arguments).float()
    first, second = (case.gate, case.up) if gated else (case.up, None)
    stored = {"w1": first, "v1": second, "w2": case.down.transpose(1, 2)}
    with torch.no_grad():
        for name, value in stored.items():
            if value is not None:
                getattr(made.mlp, name).copy_(value.reshape(experts * hidden, width))
    return made


def layer_gradients(made, case, gated):
    """As `with_gradients`, of MegaBlocks' layer."""
    experts, hidden, width = case.up.shape
    got = with_gradients(lambda h, index, weights, *_: made.forward_once(h[None], weights, index)[0], case)
    stored = {name: p.grad.view(experts, hidden, width) for name, p in made.mlp.named_parameters()}
    got["up"] = stored["v1" if gated else "w1"]
    got["down"] = stored["w2"].transpose(1, 2)
    return {**got, "gate": stored["w1"]} if gated else got


@kinds
@pytest.mark.parametrize("thrifty", [False, True], ids=["plain", "memory_optimized"])
def test_megablocks_own_layer_computes_what_the_backend_does(gated, thrifty):
    case = make_case(tokens=7, gated=gated, hidden=27)  # the layer wants 128 columns of all experts together
    wanted = with_gradients(backend("megablocks"), case)
    made = layer(case, gated, memory_optimized_mlp=thrifty)
    assert_close(layer_gradients(made, case, gated), wanted, 2e-6)


def test_status_says_whose_parts_run():
    backend("megablocks")(*make_case(tokens=1))
    rows = {name: (state, detail) for name, state, detail in status()}
    assert rows["megablocks"][0] == "available"
    assert "MegaBlocks 0.10.0" in rows["megablocks"][1]
    assert rows["megablocks_ops"] == rows["grouped_gemm"]
    assert rows["grouped_gemm"] == ("stand-in", "not installed: depthkit's torch functions")
    assert sys.modules["grouped_gemm"].__name__ == "depthkit.kernels.experts.stand_ins.grouped_gemm"


def alone(source):
    """Run `source` in a fresh process without the interpreter."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    root = Path(__file__).parents[2]
    return subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, cwd=root, env=environment, check=False
    )


def test_the_cpu_without_the_interpreter_is_refused():
    done = alone(
        "from tests.kernels.expert_cases import make_case; from depthkit.kernels.experts import backend, status\n"
        "print(*status(), sep='\\n')\n"
        "backend('megablocks')(*make_case())"
    )
    assert "('megablocks', 'unavailable'" in done.stdout
    assert "TRITON_INTERPRET=1 is not set" in done.stdout
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(
        "ValueError: the 'megablocks' expert backend runs Triton kernels, which want a GPU"
    )
    assert "TRITON_INTERPRET=1" in last


COMPILE = """
from depthkit.kernels.experts.parts import load
load()
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from megablocks.backend import kernels

def build(kernel, constants, **pointers):
    names = {name: "constexpr" for name in constants}
    source = ASTSource(kernel.fn, {**pointers, **names}, constexprs=constants)
    print(len(triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]) > 0)

sizes = {"NUM_COLUMNS": 512, "TOP_K": 2, "BLOCK_X": 128}
bins = {name: "*i32" for name in ("indices", "bin_ids", "bins", "padded_bins")}
for a_to_b in (True, False):
    copy = {**sizes, "A_TO_B": a_to_b}
    build(kernels._padded_copy, {**copy, "SCALE": True}, a="*bf16", b="*bf16", weights="*fp32", **bins)
    build(kernels._padded_copy, {**copy, "SCALE": False, "weights": None}, a="*bf16", b="*bf16", **bins)
build(kernels._padded_copy_wgrad, sizes, x="*fp32", grad="*fp32", wgrad="*fp32", **bins)
"""


def test_the_kernels_compile_for_a_gpu():
    """Triton needs no GPU to compile for one: gather, scatter and the weights' gradient for compute capability 9.0."""
    done = alone(COMPILE)
    assert done.stdout.split() == ["True"] * 5, done.stderr
