"""Train what a config file describes: a run, or a ladder of runs.

    python train.py CONFIG [key=value ...] [--dry-run] [--resume] [--run-dir DIR]
    torchrun --nproc-per-node=N train.py CONFIG [key=value ...]
    python train.py LADDER [key=value ...] [--dry-run] [--status] [--only PATTERN] [--retry] [--run-dir DIR]

Exit codes: 0 done; 1 some rung of a ladder is not finished; 2 something to mend, said in one message; 130 and
143 stopped by Ctrl-C or SIGTERM after the current step, with a checkpoint to resume from.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from depthkit import cli, config
from depthkit.training.parallel.world import told_once, world


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, read the config, let the document it holds do the rest."""
    arguments = parser().parse_intermixed_args(argv)
    return cli.run(lambda: execute(arguments))


def execute(arguments: argparse.Namespace) -> int:
    """Load the config and let it act; options that only ladders have are refused elsewhere."""
    with told_once():
        document = config.load(arguments.config, arguments.overrides)
        for name in ("only", "status", "retry"):
            if getattr(arguments, name) and document.kind != "ladder":
                raise ValueError(f"--{name} is for ladders; {arguments.config} is a {document.kind}")
        if world().size > 1 and document.kind != "run":
            raise ValueError(
                f"{arguments.config} is a {document.kind}, which starts processes of its own: "
                "use python train.py, not torchrun"
            )
    return document.execute(arguments)


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
    ladder = parse.add_argument_group("ladders")
    ladder.add_argument("--status", action="store_true", help="print how every rung stands; run nothing")
    ladder.add_argument(
        "--only",
        metavar="PATTERN",
        action="append",
        help="run the rungs whose names match, such as 'method-lns_*'; may be given again",
    )
    ladder.add_argument("--retry", action="store_true", help="try rungs again that were marked as failed")
    return parse


if __name__ == "__main__":
    sys.exit(main())
