"""Our side of flash-attn (packing, windows, choice of library, the compiled operator), with a stand-in for it."""

import sys

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from depthkit.kernels.attention import Request, flash_library
from depthkit.kernels.attention.flash import Flash
from depthkit.kernels.attention.packing import packed
from tests.kernels.attention_reference import CASES, gradients, make_request, make_tensors, reference
from tests.kernels.stand_in_flash import stand_in

LIBRARIES = {library.module: library for library in flash_library.LIBRARIES}


@pytest.fixture
def install(monkeypatch):
    """Put a stand-in where a flash-attn release would be; nothing is installed before."""

    def put(module):
        library = LIBRARIES[module]
        fake = stand_in(library.no_limit, returns_tuple=library.label.endswith("4"))
        monkeypatch.setitem(sys.modules, module, fake)
        if "." in module:
            monkeypatch.setitem(sys.modules, module.split(".")[0], fake)
        flash_library.load.cache_clear()
        return module

    for name in ("flash_attn", "flash_attn_interface", "flash_attn.cute"):
        monkeypatch.setitem(sys.modules, name, None)
    flash_library.load.cache_clear()
    yield put
    flash_library.load.cache_clear()


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("module", "kv_heads"), [*((module, 2) for module in LIBRARIES), ("flash_attn", 1), ("flash_attn", 6)]
)
@pytest.mark.parametrize("case", CASES)
def test_packing_and_windows_equal_the_loop_with_gradients(install, module, kv_heads, case):
    request = make_request(grad=True, **CASES[case])
    tensors = make_tensors(request, kv_heads=kv_heads)
    expected = reference(*tensors, request, 0.3)
    got = Flash.attend(*tensors, packed(request, install(module)), 0.3)
    close(got, expected)
    for a, b in zip(gradients(got, tensors), gradients(expected, tensors), strict=True):
        close(a, b)


@pytest.mark.parametrize("case", [case for case in CASES if "full" not in case])
@pytest.mark.parametrize("queries", [1, 3, 8])
def test_late_queries_equal_the_last_rows_of_the_whole(install, case, queries):
    library = install("flash_attn")
    whole, late = make_request(9, **CASES[case]), make_request(9, queries, **CASES[case])
    q, k, v = make_tensors(whole, grad=False)
    expected = reference(q, k, v, whole, 0.3)[:, :, -queries:]
    close(Flash.attend(q[:, :, -queries:], k, v, packed(late, library), 0.3), expected)


def test_bounds_of_packed_rows_by_hand():
    """Rows [0 0 0 1 1 2 2] and [3 x 7] with the last 3 positions as queries."""
    pattern = packed(make_request(7, 3, packed=True, window=4), "flash_attn")
    assert pattern.key_bounds.tolist() == [0, 3, 5, 7, 14]
    assert pattern.query_bounds.tolist() == [0, 0, 1, 3, 6]
    assert pattern.limits == (3, 7, 3, 0)


def test_a_document_that_comes_back_is_refused():
    request = make_request(7, batch=2, packed=True)
    request.documents[1] = torch.tensor([0, 0, 1, 1, 0, 0, 0])
    with pytest.raises(ValueError, match="comes back after another"):
        packed(request, "flash_attn")


def test_inside_a_compiled_region_it_is_one_operator_with_the_same_gradients(install):
    request = make_request(7, packed=True, window=2, grad=True)
    tensors, pattern = make_tensors(request), packed(request, install("flash_attn_interface"))
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(
        lambda q, k, v: Flash.attend(q, k, v, pattern, 0.3) * 2, backend=counter, fullgraph=True
    )
    got, expected = compiled(*tensors), Flash.attend(*tensors, pattern, 0.3) * 2
    close(got, expected)
    for a, b in zip(gradients(got, tensors), gradients(expected, tensors), strict=True):
        close(a, b)
    assert counter.frame_count == 1
    assert "depthkit.flash_varlen" in counter.graphs[0].code


def test_the_newest_library_that_fits_the_gpu_is_taken(install):
    assert flash_library.installed() == []
    install("flash_attn")
    install("flash_attn_interface")
    assert [library.label for library in flash_library.installed()] == ["flash-attn 3", "flash-attn 2"]
    assert flash_library.fitting(9, 64).label == "flash-attn 3"
    assert flash_library.fitting(8, 64).label == "flash-attn 2"
    assert flash_library.fitting(7, 64) is None
    assert flash_library.fitting(9, 512) is None


def test_a_library_that_is_absent_and_one_that_is_broken_say_so(install, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "flash_attn_interface")
    assert flash_library.load("flash_attn_interface") == (None, "not installed")
    (tmp_path / "flash_attn_interface.py").write_text("raise OSError('libcudart.so.99: cannot open')")
    monkeypatch.syspath_prepend(tmp_path)
    flash_library.load.cache_clear()
    assert flash_library.load("flash_attn_interface")[1] == "its import fails: libcudart.so.99: cannot open"


def gpu_request(**options):
    """A request as it would come from a GPU; nothing is allocated there."""
    defaults = {"dtype": torch.bfloat16, "head_dim": 64, "device": torch.device("cuda")}
    return Request(batch=2, queries=7, keys=7, **(defaults | options))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": torch.float32}, "bf16 or fp16, not in float32"),
        ({"device": torch.device("cpu")}, "runs on cuda, not on cpu"),
        ({"head_dim": 60}, "multiple of 8, not 60"),
        ({"head_dim": 512}, "flash-attn 2 does not support head_dim 512 on compute capability 9.x"),
        ({}, None),
    ],
)
def test_what_flash_refuses(install, monkeypatch, options, reason):
    install("flash_attn")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    said = Flash.refuses(gpu_request(**options))
    assert said is None if reason is None else reason in said
