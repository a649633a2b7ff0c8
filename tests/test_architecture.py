"""Rules about the code itself: who may import whom, how long a file is, what start-up costs."""

import ast
import subprocess
import sys
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


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_rooms_import_only_what_stands_below_them(path):
    here = room(path)
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "depthkit" or len(parts) < 2 or parts[1] not in RANK:
            continue
        there = parts[1]
        assert there == here or RANK[there] < RANK[here], f"{here} imports {there}"


def test_only_kernels_import_kernel_libraries():
    for path in SOURCES:
        libraries = {name.split(".")[0] for name in imports(path)}
        assert room(path) == "kernels" or not libraries & {"flash_attn", "megablocks", "grouped_gemm", "stk"}


@pytest.mark.parametrize(
    "path",
    [
        *SOURCES,
        ROOT / "train.py",
        ROOT / "eval.py",
        *sorted((ROOT / "tests").rglob("*.py")),
        *sorted((ROOT / "benchmarks").rglob("*.py")),
    ],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_no_file_is_over_350_lines(path):
    assert len(path.read_text().splitlines()) <= 350


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
