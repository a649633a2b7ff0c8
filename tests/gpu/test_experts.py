"""Expert backends on the GPU against every expert on every token in float64: values and gradients."""

import pytest
import torch

from depthkit.kernels import experts
from tests.kernels.expert_cases import IDLE, assert_close, make_case, statement, with_gradients

pytestmark = pytest.mark.gpu

TOLERANCE = {torch.float32: 5e-3, torch.bfloat16: 4e-2}
"""Relative to the largest entry. In fp32 matrix products may use TF32."""


@pytest.mark.parametrize("name", sorted(experts.BACKENDS))
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("top_k", [1, 2])
def test_backends_equal_the_statement_with_gradients(name, dtype, gated, top_k):
    # Widths whose rows are multiples of 16 bytes, which grouped products on the GPU need.
    case = make_case(tokens=77, top_k=top_k, gated=gated, width=64, hidden=128, device="cuda").of(dtype)
    wanted = with_gradients(statement, case.double())
    try:
        got = with_gradients(experts.backend(name), case)
    except ValueError as refusal:  # not installed, or a dtype that its kernels do not take
        pytest.skip(str(refusal))
    assert_close(got, wanted, TOLERANCE[dtype])
    assert not got["up"][IDLE].any()
    assert not got["down"][IDLE].any()
