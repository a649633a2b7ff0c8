"""Do the kernels agree with the references on this machine, and how fast are they?

    python benchmarks/gpu_check.py [REPORT.md]

Runs on the python it is started with and installs nothing. Wheels in the folder `wheels/` are unpacked into a
temporary folder and imported from there first, for packages which that python lacks. Parity tests come first
(tests/gpu), then throughput; what is absent is listed as "not run" with the reason. Under six minutes on one
GPU. Without a GPU the same code runs at tiny sizes, which checks this script and nothing else.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PARITY = {
    "attention: sdpa, flash": (90, ["tests/gpu/test_attention.py", "-k", "not flex"]),
    "experts": (50, ["tests/gpu/test_experts.py"]),
    "attention: flex": (130, ["tests/gpu/test_attention.py", "-k", "flex"]),
}
"""Groups of tests, each in a process of its own, with the seconds it may take."""
ALL_SECONDS = 310
"""No measurement starts later than this."""
Row = dict[str, Any]


def add_wheels(folder: Path, target: Path) -> list[str]:
    """Unpack the wheels of `folder` into `target` and import from there first; their names."""
    wheels = sorted(folder.glob("*.whl"))
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)
    first = [str(target), str(ROOT)]
    sys.path[:0] = first
    os.environ["PYTHONPATH"] = os.pathsep.join([*first, os.environ.get("PYTHONPATH", "")])
    return [wheel.name for wheel in wheels]


def parity(title: str, seconds: int, arguments: list[str], folder: Path) -> Row:
    """Run tests in a process of their own and count what happened."""
    report = folder / "parity.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", *arguments, "-m", "gpu", "-q", "-p", "no:cacheprovider"]
    command.append(f"--junitxml={report}")
    try:
        done = subprocess.run(command, cwd=ROOT, timeout=seconds, capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        return {"tests": title, "passed": 0, "failed": [f"not done after {seconds} s"], "not_run": {}}
    if report.exists():
        return {"tests": title, **counted(report)}
    last = (done.stdout + done.stderr).strip().splitlines()[-1:]
    return {"tests": title, "passed": 0, "failed": [], "not_run": {" ".join(last): 1}}


def counted(report: Path) -> Row:
    """How many tests of a JUnit report passed, which failed, and how many did not run for what reason."""
    cases = list(xml.parse(report).getroot().iter("testcase"))
    reasons = Counter(str(node.get("message")) for case in cases for node in case.iter("skipped"))
    failed = [
        f"{case.get('name')}: {str(node.get('message')).splitlines()[0]}"
        for case in cases
        for node in (*case.iter("failure"), *case.iter("error"))
    ]
    return {"passed": len(cases) - len(failed) - reasons.total(), "failed": failed, "not_run": dict(reasons)}


def page(report: Row) -> str:
    """The report as Markdown."""
    lines = [f"# GPU check, {report['date']}", "", f"`{report['command']}`", ""]
    if not report["gpu"]:
        lines += [
            "**No GPU here:** tiny sizes on the CPU. This checks the script and says nothing of speed.",
            "",
        ]
    lines += ["## Machine", "", "| part | state | detail |", "|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in report["machine"]]
    lines += ["", "## Parity", "", "| tests | passed | failed | not run |", "|---|---|---|---|"]
    for row in report["parity"]:
        absent = "<br>".join(f"{count}: {reason}" for reason, count in row["not_run"].items()) or "0"
        failed = "<br>".join([str(len(row["failed"])), *row["failed"]])
        lines.append(f"| {row['tests']} | {row['passed']} | {failed} | {absent} |")
    lines += ["", "## Throughput", "", f"{report['sizes']}; medians.", ""]
    lines += ["| part | backend | length | documents a row | forward ms | forward + backward ms | tokens/s |"]
    lines += ["|---|---|---|---|---|---|---|", *(throughput_line(row) for row in report["throughput"])]
    return "\n".join(lines) + "\n"


def throughput_line(row: Row) -> str:
    """One measurement as a line of a Markdown table."""
    what = [row["part"], row["backend"], row["length"] or "", row["documents"] or ""]
    times = (
        [f"not run: {row['not_run']}", "", ""]
        if "not_run" in row
        else [
            f"{row['forward_ms']:.3f}",
            f"{row['forward_backward_ms']:.3f}",
            f"{row['tokens_per_second']:,.0f}",
        ]
    )
    return f"| {' | '.join(str(cell) for cell in (*what, *times))} |"


def check(began: float, wheels: list[str], folder: Path) -> Row:
    """Everything, as plain data."""
    import gpu_throughput

    from depthkit.kernels import doctor, experts

    device, sizes = doctor.default_device(), gpu_throughput.sizes_here()
    machine = [
        *doctor.machine_rows(),
        *doctor.attention_rows(device),
        *doctor.library_rows(),
        *experts.status(),
    ]
    return {
        "date": datetime.now().isoformat(timespec="minutes"),
        "command": "python benchmarks/gpu_check.py",
        "gpu": device.type == "cuda",
        "machine": [
            *([("wheels", str(len(wheels)), ", ".join(wheels))] if wheels else []),
            *map(tuple, machine),
        ],
        "parity": list(shown(parity(title, *how, folder) for title, how in PARITY.items())),
        "sizes": described(sizes),
        "throughput": list(shown(gpu_throughput.all_rows(sizes, began + ALL_SECONDS))),
        "seconds": round(time.monotonic() - began, 1),
    }


def shown(rows: Iterable[Row]) -> Iterator[Row]:
    """The same rows, each told as it comes, so that a machine that dies half-way leaves something."""
    for row in rows:
        print(row, file=sys.stderr, flush=True)
        yield row


def described(sizes: Any) -> str:
    """What was measured, in a sentence."""
    heads, experts = ("/".join(map(str, numbers)) for numbers in (sizes.heads, sizes.moe))
    return (
        f"{str(sizes.dtype).removeprefix('torch.')}, {sizes.tokens} tokens; attention with {heads} heads, "
        f"key/value heads and channels a head; two of {experts} experts, width and hidden width"
    )


def main() -> int:
    """Run, write REPORT.md and REPORT.json, print the page; 1 if a parity test failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "report", nargs="?", type=Path, default=Path("runs/gpu_check.md"), metavar="REPORT.md"
    )
    report, began = parser.parse_args().report, time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheels = add_wheels(ROOT / "wheels", folder / "site")
        found = check(began, wheels, folder)
        from depthkit.files import write_json, write_text

        write_text(report, page(found))
        write_json(report.with_suffix(".json"), found)
    print(page(found))
    return int(any(row["failed"] for row in found["parity"]))


if __name__ == "__main__":
    sys.exit(main())
