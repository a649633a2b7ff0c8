"""Sorting what perf saw."""

import pytest
import torch

from benchmarks import where
from benchmarks.bench.shapes import Shape

LINES = """# Overhead|Shared Object       |Symbol
 30.00% |libtorch_cpu.so     |[.] mkl_blas_avx512_sgemm_kernel_nocopy_NN_b0|-      -
 10.00% |[JIT] tid 7         |[.] 0x00007f55
 20.00% |cabc.main.so        |[.] cpp_fused_add_0
  5.00% |libtorch_cpu.so     |[.] at::native::(anonymous namespace)::fused_adam_kernel
  5.00% |libtorch_cpu.so     |[.] Sleef_finz_expf16_u10avx512f
 10.00% |libpython3.11.so.1.0|[.] _PyEval_EvalFrameDefault
  5.00% |libc.so.6           |[.] _int_malloc
  3.00% |[kernel.kallsyms]   |[k] clear_page_erms
  2.00% |libtorch_cpu.so     |[.] c10::Dispatcher::call
 10.00% |unheard.so          |[.] of
"""


def test_every_line_is_counted_once():
    shares = where.sort(LINES.splitlines())
    assert sum(shares.values()) == pytest.approx(1)
    assert shares == pytest.approx(
        {
            "matrix products": 0.4,
            "exponentials": 0.05,
            "compiled kernels": 0.2,
            "optimiser": 0.05,
            "other kernels": 0,
            "interpreter": 0.1,
            "memory management": 0.08,
            "dispatch": 0.02,
            "unnamed": 0.1,
        }
    )


def test_the_table_has_each_candidates_milliseconds_and_percent():
    found = {"a": {"step": 10.0, "unnamed": 1.0}, "b": {"step": 20.0, "unnamed": 5.0}}
    table = where.tabulate(Shape(64, 2), found)
    assert table.rows == [["step", 10.0, 100.0, 20.0, 100.0], ["unnamed", 1.0, 10.0, 5.0, 25.0]]


def test_without_perf_it_says_so_before_it_has_measured_anything(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FileNotFoundError, match="perf"):
        where.sampled(Idle(), 1)


class Idle:
    def step(self):
        return torch.zeros(())
