"""Expert backends against an einsum statement in float64, gradients included."""

from importlib.util import find_spec

import pytest
import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from depthkit.kernels.experts import backend, status
from tests.kernels.expert_cases import (
    assert_close,
    assert_states_the_same,
    make_case,
    statement,
    with_gradients,
)

torch_backends = pytest.mark.parametrize("name", ["grouped", "loop"])
kinds = pytest.mark.parametrize("gated", [True, False], ids=["swiglu", "gelu"])


@kinds
@pytest.mark.parametrize("top_k", [1, 2, 4])
@torch_backends
def test_output_and_gradients_equal_the_statement(name, top_k, gated):
    assert_states_the_same(name, make_case(top_k=top_k, gated=gated), 2e-6)


@kinds
def test_the_loop_is_a_float64_reference(gated):
    assert_states_the_same("loop", make_case(gated=gated).double(), 1e-14)


@kinds
@torch_backends
def test_bf16_equals_the_statement_on_the_same_rounded_inputs(name, gated):
    case = make_case(gated=gated).of(torch.bfloat16)
    assert backend(name)(*case).dtype is torch.bfloat16
    assert_states_the_same(name, case, 2e-2)


@pytest.mark.parametrize(("width", "hidden"), [(32, 16), (33, 16), (32, 17), (1, 1)])
def test_any_widths(width, hidden):
    assert_states_the_same("grouped", make_case(width=width, hidden=hidden), 2e-6)


@torch_backends
def test_one_expert_and_one_token(name):
    case = make_case(tokens=1, top_k=1, experts=3)
    case = case._replace(index=torch.zeros(1, 1, dtype=torch.int64), up=case.up[:1], down=case.down[:1])
    case = case._replace(gate=case.gate[:1])
    assert_close(with_gradients(backend(name), case), with_gradients(statement, case.double()), 2e-6)


@torch_backends
def test_no_tokens_give_no_output_and_zero_gradients(name):
    got = with_gradients(backend(name), make_case(tokens=0))
    assert got["y"].shape == got["h"].shape == (0, 33)
    assert not any(got[matrix].any() for matrix in ("gate", "up", "down"))


@torch_backends
def test_the_order_of_tokens_and_of_choices_does_not_matter(name):
    case = make_case(top_k=3)
    order = torch.randperm(len(case.h), generator=torch.Generator().manual_seed(1))
    moved = case._replace(
        h=case.h[order], index=case.index[order].flip(1), weights=case.weights[order].flip(1)
    )
    torch.testing.assert_close(backend(name)(*moved), backend(name)(*case)[order], rtol=0, atol=1e-6)


@torch_backends
def test_checkpointing_changes_nothing(name):
    case, compute = make_case(), backend(name)
    again = with_gradients(lambda *tensors: checkpoint(compute, *tensors, use_reentrant=False), case)
    for key, tensor in with_gradients(compute, case).items():
        assert torch.equal(tensor, again[key]), key


@torch_backends
def test_autocast_multiplies_in_bf16_and_sums_in_fp32(name):
    case = make_case()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = with_gradients(backend(name), case)
    cast = case.of(torch.bfloat16)
    assert {tensor.dtype for tensor in got.values()} == {torch.float32}
    assert torch.equal(got["y"].bfloat16(), backend(name)(*cast))
    assert not torch.equal(got["y"], got["y"].bfloat16().float())
    assert_close(got, with_gradients(statement, case.double()), 2e-2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert backend("loop")(*case.double()).dtype is torch.float64


def test_contributions_are_summed_in_fp32_for_bf16_input():
    """1 + 2^-9 - 1 with the k = 3 contributions: bf16 sums lose the middle term."""
    ones = torch.ones(3, 1, 1, dtype=torch.bfloat16)
    case = (
        torch.ones(1, 1, dtype=torch.bfloat16),
        torch.tensor([[0, 1, 2]]),
        torch.tensor([[1.0, 2**-9, -1]]),
    )
    single = torch.nn.functional.gelu(torch.ones(1, dtype=torch.bfloat16)).item()
    for name in ("grouped", "loop"):
        assert backend(name)(*case, None, ones, ones).item() == single * 2**-9


def test_grouped_asks_nothing_of_the_device():
    """Fake tensors have no values, so whatever waits for one fails, as the loop does."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        case = [mode.from_tensor(tensor) for tensor in make_case()]
        assert backend("grouped")(*case).shape == (23, 33)
        with pytest.raises(DynamicOutputShapeException):
            backend("loop")(*case)


@torch_backends
def test_flops_are_those_of_the_chosen_experts(name):
    with FlopCounterMode(display=False) as counter:
        with_gradients(backend(name), make_case(tokens=7, top_k=2))
    assert counter.get_total_flops() == 3 * (2 * 7 * 2 * 3 * 33 * 17)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # the compiler's own
@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_grouped_compiles_whole(compiler):
    compiled = torch.compile(backend("grouped"), fullgraph=True, backend=compiler)
    for tokens in (23, 24):
        case = make_case(tokens=tokens)
        assert_close(with_gradients(compiled, case), with_gradients(backend("grouped"), case), 1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [33, 64])
def test_grouped_equals_the_loop_on_a_gpu(width, dtype):
    case = make_case(width=width, device="cuda").of(dtype)
    tolerance = 2e-2 if dtype is torch.bfloat16 else 2e-3
    assert_states_the_same("grouped", case, tolerance)
    assert_close(with_gradients(backend("grouped"), case), with_gradients(backend("loop"), case), tolerance)


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(
        ValueError, match=r"unknown expert backend 'group'; did you mean 'grouped'\? Allowed: grouped"
    ):
        backend("group")


@pytest.mark.parametrize("name", ["grouped", "megablocks"])
def test_float64_is_refused_where_kernels_have_none(name):
    with pytest.raises(ValueError, match=f"'{name}' expert backend does not compute in float64; use 'loop'"):
        backend(name)(*make_case().double())


def test_a_torch_without_grouped_mm_is_refused(monkeypatch):
    monkeypatch.setattr("depthkit.kernels.experts.grouped.implementation", lambda: None)
    with pytest.raises(ValueError, match="has no grouped_mm; use the 'loop' expert backend"):
        backend("grouped")(*make_case())


def test_status_names_every_backend():
    rows = {name: (state, detail) for name, state, detail in status()}
    assert rows["grouped"][0] == rows["loop"][0] == "available"
    assert "grouped_mm" in rows["grouped"][1]
    assert "megablocks" in rows


@pytest.mark.skipif(find_spec("megablocks") is not None, reason="MegaBlocks is installed")
def test_absent_megablocks_is_refused_with_the_page():
    assert ("megablocks", "unavailable", "MegaBlocks is not installed; see docs/megablocks.md") in status()
    with pytest.raises(
        ValueError, match=r"needs MegaBlocks, which is not installed; see docs/megablocks\.md"
    ):
        backend("megablocks")(*make_case())
