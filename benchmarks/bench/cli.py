"""The command line that all scripts share."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.bench.report import Report


@dataclass(frozen=True)
class Options:
    """What a script was asked for."""

    quick: bool
    rounds: int
    only: tuple[str, ...]

    def wanted(self, name: str) -> bool:
        """Whether a part of the script is to run."""
        return not self.only or name in self.only


def main(
    script: str, about: str, parts: tuple[str, ...], rounds: int, fill: Callable[[Options, Report], None]
) -> None:
    """Run a script: measure, print, write JSON.

    Args:
        script: its name, for the command and for the file.
        about: its docstring.
        parts: what `--only` can choose.
        rounds: how many a full run has.
        fill: does the measuring.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{script}", description=about.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small and noisy: does it run?")
    parser.add_argument("--rounds", type=int, help=f"measured rounds; {rounds}, or 2 with --quick")
    parser.add_argument("--only", nargs="+", choices=parts, default=(), help="parts to run")
    parser.add_argument("--json", type=Path, help="where to write the results")
    given = parser.parse_args()
    torch.set_num_threads(1)
    options = Options(given.quick, given.rounds or (2 if given.quick else rounds), tuple(given.only))
    report = Report(script, about.split("\n\n")[0], _command(script, options), options.quick)
    fill(options, report)
    path = given.json or Path(tempfile.gettempdir()) / f"depthkit-{script}.json"
    report.notes = list(dict.fromkeys(report.notes))
    report.show()
    report.save(path)
    print(path)


def _command(script: str, options: Options) -> str:
    chosen = f" --only {' '.join(options.only)}" if options.only else ""
    return f"python -m benchmarks.{script} --rounds {options.rounds}{chosen}" + " --quick" * options.quick
