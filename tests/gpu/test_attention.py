"""Fused attention on the GPU against attention written out in fp32: values and gradients of q, k and v."""

import pytest
import torch

from depthkit.kernels.attention import ATTENTION, attend, prepare
from tests.kernels.attention_reference import CASES, gradients, make_request, make_tensors

pytestmark = pytest.mark.gpu

TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-3}
"""Relative error in the Frobenius norm. In fp32 the fused kernels may use TF32."""


BACKENDS = ["sdpa", "flash", "flex"]
SETTINGS = [
    *((torch.bfloat16, 193, case) for case in CASES),
    (torch.bfloat16, 128, "causal"),
    (torch.bfloat16, 128, "documents"),
    (torch.float16, 193, "documents-window"),
    (torch.float32, 193, "causal"),
    (torch.float32, 193, "documents-window"),
]


@pytest.fixture(autouse=True)
def _forget_compiled():
    """Each kind of mask compiles a kernel of its own; dynamo takes eight in a process."""
    torch._dynamo.reset()


def usable(name, request):
    backend = ATTENTION.get(name)
    reason = backend.available() or backend.refuses(request)
    if reason is not None:
        pytest.skip(f"{name}: {reason}")


def tensors_and_request(dtype, keys, queries=None, heads=8, kv_heads=2, width=64, **options):
    like = torch.empty(0, width, dtype=dtype, device="cuda")
    request = make_request(keys, queries, like=like, **options)
    return make_tensors(request, heads, kv_heads, width, dtype, "cuda"), request


def close(got, expected, dtype):
    error = (got.float() - expected.float()).norm() / expected.float().norm()
    assert error <= TOLERANCE[dtype]
    # One wrong position of many hardly moves the norm.
    assert (got.float() - expected.float()).abs().max() <= 10 * TOLERANCE[dtype] * expected.abs().max()


def written_out(tensors, request, scale):
    """Attention and gradients by `eager`, in fp32 from the same numbers."""
    wide = [x.detach().float().requires_grad_() for x in tensors]
    y = attend(*wide, prepare("eager", request), scale)
    return y, gradients(y, wide)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(("dtype", "keys", "case"), SETTINGS, ids=str)
def test_backends_equal_attention_written_out_with_gradients(name, dtype, keys, case):
    tensors, request = tensors_and_request(dtype, keys, grad=True, **CASES[case])
    usable(name, request)
    expected, expected_gradients = written_out(tensors, request, 0.125)
    got = attend(*tensors, prepare(name, request), 0.125)
    close(got, expected, dtype)
    for a, b in zip(gradients(got, tensors), expected_gradients, strict=True):
        close(a, b, dtype)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(("heads", "width"), [((8, 8), 32), ((8, 1), 128), ((6, 3), 64)], ids=str)
def test_heads_and_widths(name, heads, width):
    tensors, request = tensors_and_request(
        torch.bfloat16, 161, heads=heads[0], kv_heads=heads[1], width=width, grad=True
    )
    usable(name, request)
    expected, expected_gradients = written_out(tensors, request, 0.1)
    got = attend(*tensors, prepare(name, request), 0.1)
    close(got, expected, torch.bfloat16)
    for a, b in zip(gradients(got, tensors), expected_gradients, strict=True):
        close(a, b, torch.bfloat16)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("case", ["causal", "documents-window"])
def test_decoding_with_earlier_keys(name, queries, case):
    tensors, request = tensors_and_request(torch.bfloat16, 130, queries, **CASES[case])
    usable(name, request)
    tensors = [x.detach() for x in tensors]
    expected = attend(*(x.float() for x in tensors), prepare("eager", request), 0.125)
    close(attend(*tensors, prepare(name, request), 0.125), expected, torch.bfloat16)


@pytest.mark.parametrize("name", BACKENDS)
def test_inside_a_compiled_region(name):
    tensors, request = tensors_and_request(torch.bfloat16, 128, grad=True, packed=True)
    usable(name, request)
    pattern = prepare(name, request)
    expected, expected_gradients = written_out(tensors, request, 0.125)
    got = torch.compile(lambda q, k, v: attend(q, k, v, pattern, 0.125), fullgraph=True)(*tensors)
    close(got, expected, torch.bfloat16)
    for a, b in zip(gradients(got, tensors), expected_gradients, strict=True):
        close(a, b, torch.bfloat16)
