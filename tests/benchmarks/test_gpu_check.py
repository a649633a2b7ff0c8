"""The GPU check: wheels, counting of tests, and a page with every row, present or not."""

import importlib
import os
import sys
import time
import zipfile
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
JUNIT = """<testsuites><testsuite><testcase name="a"/><testcase name="b"><failure message="off by 3
more"/></testcase><testcase name="c"><skipped message="no GPU"/></testcase><testcase name="d">
<skipped message="no GPU"/></testcase></testsuite></testsuites>"""


@pytest.fixture
def check(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    return importlib.import_module("gpu_check")


def test_a_wheel_in_the_folder_can_be_imported_and_nothing_is_installed(check, tmp_path):
    folder, target = tmp_path / "wheels", tmp_path / "site"
    folder.mkdir()
    with zipfile.ZipFile(folder / "toy_kernel-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("toy_kernel_of_a_test/__init__.py", "answer = 42")
    assert check.add_wheels(folder, target) == ["toy_kernel-1.0-py3-none-any.whl"]
    module = importlib.import_module("toy_kernel_of_a_test")
    assert (module.answer, Path(module.__file__).is_relative_to(target)) == (42, True)
    assert os.environ["PYTHONPATH"].startswith(str(target))
    assert check.add_wheels(tmp_path / "absent", target) == []


def test_passed_failed_and_skipped_are_counted_with_reasons(check, tmp_path):
    (tmp_path / "report.xml").write_text(JUNIT)
    assert check.counted(tmp_path / "report.xml") == {
        "passed": 1,
        "failed": ["b: off by 3 more"],
        "not_run": {"no GPU": 2},
    }


def test_a_python_without_pytest_or_with_tests_that_hang_is_reported(check, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert check.parity("x", 5, [], tmp_path)["passed"] == 0
    script = tmp_path / "slow"
    script.write_text("#!/bin/sh\nexec sleep 9\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    assert check.parity("x", 0.2, [], tmp_path)["failed"] == ["not done after 0.2 s"]


def test_every_backend_has_a_row_with_times_or_a_reason(check):
    throughput = importlib.import_module("gpu_throughput")
    from depthkit.kernels import attention, experts

    sizes = throughput.sizes_here()._replace(lengths=(16,), tokens=32, rounds=1)
    rows = list(throughput.all_rows(sizes, time.monotonic() + 60))
    names = {(row["part"], row["backend"]) for row in rows}
    assert names == {("attention", n) for n in attention.ATTENTION.names()} | {
        ("experts", n) for n in experts.BACKENDS
    }
    timed = [row for row in rows if "not_run" not in row]
    assert {row["backend"] for row in timed} >= {"eager", "sdpa", "loop", "grouped"}
    assert all(row["forward_backward_ms"] > 0 for row in timed)
    late = list(throughput.all_rows(sizes, time.monotonic() - 1))
    assert {row["not_run"] for row in late} == {"the time was up"}
    for row in (*rows, *late):
        assert check.throughput_line(row).count("|") == 8
