"""Train what a config file describes: a run, or a ladder of runs.

    python train.py CONFIG [key=value ...] [--dry-run] [--resume] [--run-dir DIR]

Exit codes: 0 done; 2 something to mend, said in one message; 130 and 143 stopped by Ctrl-C or SIGTERM
after the current step, with a checkpoint to resume from.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from depthkit import cli, config


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, read the config, let the document it holds do the rest."""
    arguments = parser().parse_intermixed_args(argv)
    return cli.run(lambda: config.load(arguments.config, arguments.overrides).execute(arguments))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parse = argparse.ArgumentParser(
        prog="train.py", description="Train a run or a ladder.", allow_abbrev=False
    )
    parse.add_argument(
        "config", metavar="CONFIG", type=Path, help="a YAML file, such as configs/quickstart.yaml"
    )
    parse.add_argument(
        "overrides", metavar="key=value", nargs="*", help="replaces one value, such as train.steps=60"
    )
    parse.add_argument("--dry-run", action="store_true", help="print plan, sizes and cost; train nothing")
    parse.add_argument("--full", action="store_true", help="with --dry-run: do not shorten a long plan")
    parse.add_argument(
        "--resume", action="store_true", help="continue from the latest checkpoint, if there is one"
    )
    parse.add_argument(
        "--resume-from", metavar="STEP", type=int, help="continue from the checkpoint of this step"
    )
    parse.add_argument("--run-dir", metavar="DIR", type=Path, help="default: runs/CONFIG-<8 hex digits>")
    return parse


if __name__ == "__main__":
    sys.exit(main())
