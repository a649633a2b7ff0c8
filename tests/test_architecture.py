"""Rules about the code itself: who may import whom, how long a file is, what start-up costs."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "depthkit").rglob("*.py"))
RANK = {
    "registry": 0,
    "files": 0,
    "cli": 0,
    "config": 1,
    "kernels": 2,
    "model": 3,
    "data": 4,
    "utilization": 4,
    "training": 5,
    "ladder": 6,
    "interop": 7,
    "api": 8,
    "__main__": 9,
    "__init__": 9,
}


def room(path):
    return path.relative_to(ROOT / "depthkit").with_suffix("").parts[0]


@cache
def imports(path):
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def reaches_up(path):
    """Modules of rooms that do not stand below the one `path` is in."""
    here = room(path)
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "depthkit" and len(parts) > 1 and parts[1] in RANK:
            there = parts[1]
            if there != here and RANK[there] >= RANK[here]:
                yield f"{path.relative_to(ROOT)} imports {name}"


# One test for all files: a thousand tests of a millisecond each cost seconds of their own.
def test_rooms_import_only_what_stands_below_them():
    assert len(SOURCES) > 100
    assert [line for path in SOURCES for line in reaches_up(path)] == []


def test_only_kernels_import_kernel_libraries():
    for path in SOURCES:
        libraries = {name.split(".")[0] for name in imports(path)}
        assert room(path) == "kernels" or not libraries & {"flash_attn", "megablocks", "grouped_gemm", "stk"}


def test_no_file_is_over_350_lines():
    others = [path for folder in ("tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    files = [*SOURCES, ROOT / "train.py", ROOT / "eval.py", *others]
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert {name: count for name, count in lines.items() if count > 350} == {}


@pytest.mark.parametrize("script", [["train.py", "--help"], ["eval.py", "--help"], ["-c", "import depthkit"]])
def test_start_up_imports_neither_torch_nor_datasets(script):
    report = "import sys, atexit; atexit.register(lambda: print('HEAVY', {'torch', 'datasets'} & set(sys.modules)))"
    run = (
        f"{report}; import runpy; sys.argv = {script!r}; runpy.run_path({script[0]!r}, run_name='__main__')"
        if script[0] != "-c"
        else f"{report}; {script[1]}"
    )
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "HEAVY set()" in done.stdout
