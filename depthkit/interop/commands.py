"""The commands that take models in and out: export, import, retrofit, moefy. Imports nothing heavy."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Add the commands to the subparsers of `python -m depthkit`."""
    for adding in (_add_export, _add_import, _add_retrofit, _add_moefy):
        adding(commands)


def _add_export(commands: Any) -> None:
    parse = commands.add_parser("export", help="a run as a Hugging Face folder")
    parse.add_argument("run_dir", metavar="RUN", type=Path, help="a run or checkpoint folder")
    parse.add_argument("out", metavar="OUT", type=Path, help="the folder to write")
    parse.add_argument(
        "--as",
        dest="family",
        metavar="FAMILY",
        default="auto",
        help="llama, mistral, ..., or depthkit for its own architecture; default: the first that is exact",
    )
    parse.add_argument(
        "--unroll", action="store_true", help="give every visit of a looped segment a layer of its own"
    )
    parse.set_defaults(run=_export)


def _add_import(commands: Any) -> None:
    parse = commands.add_parser("import", help="a Hugging Face model as a run of depthkit")
    parse.add_argument("source", metavar="NAME_OR_PATH", help="a folder, a name on the hub, or smollm2")
    parse.add_argument("--revision", help="branch, tag or commit on the hub")
    _add_run_options(parse)
    parse.set_defaults(run=_import)


def _add_retrofit(commands: Any) -> None:
    parse = commands.add_parser("retrofit", help="a looped model from a pretrained one (arXiv:2511.07384)")
    parse.add_argument("source", metavar="SOURCE", help="a run, a folder, a name on the hub, or smollm2")
    parse.add_argument(
        "--split", metavar="P/C/D", required=True, help="layers of prelude, core and coda, such as 4/8/4"
    )
    parse.add_argument(
        "--by",
        default="index",
        help="which layers stay: index (the first P and the last C + D), block_influence, angular_distance; "
        "default: index",
    )
    parse.add_argument("--report", type=Path, help="what eval.py wrote about SOURCE, for --by")
    parse.add_argument("--layers", metavar="LIST", help="the layers themselves, such as 0-3,10-17,18-21")
    parse.add_argument("--loops", type=int, default=4, help="mean loop count; default 4")
    parse.add_argument("--no-adapter", action="store_true", help="loop the core on its own output alone")
    _add_run_options(parse)
    parse.set_defaults(run=_retrofit)


def _add_moefy(commands: Any) -> None:
    parse = commands.add_parser("moefy", help="dense layers of a model turned into experts")
    parse.add_argument("source", metavar="SOURCE", help="a run, a folder, a name on the hub, or smollm2")
    parse.add_argument("--experts", type=int, default=8, help="copies of every feed-forward; default 8")
    parse.add_argument("--top-k", type=int, default=2, help="experts a token goes to; default 2")
    parse.add_argument("--layers", metavar="LIST", help="which, such as 1,3,8-11; default: all dense ones")
    _add_run_options(parse)
    parse.set_defaults(run=_moefy)


def _add_run_options(parse: argparse.ArgumentParser) -> None:
    parse.add_argument("overrides", metavar="key=value", nargs="*", help="such as train.steps=50")
    parse.add_argument("--out", metavar="DIR", type=Path, help="the run folder to write; default: runs/NAME")


def _export(args: argparse.Namespace) -> None:
    from depthkit.interop.export import export_run

    found = export_run(args.run_dir, args.out, args.family, args.unroll)
    why = "" if found.reason is None else f": {found.reason}"
    print(f"{found.folder}: written as {found.family}{why}")


def _import(args: argparse.Namespace) -> None:
    from depthkit.interop.imports import import_model

    out = import_model(args.source, _out(args, "import"), args.overrides, args.revision)
    _say_what_next(out)


def _retrofit(args: argparse.Namespace) -> None:
    from depthkit.interop.retrofit import Choice, retrofit

    choice = Choice(split=args.split, by=args.by, report=args.report, layers=args.layers)
    adapter = not args.no_adapter
    out, sentence = retrofit(args.source, _out(args, "retrofit"), choice, args.loops, adapter, args.overrides)
    print(sentence)
    _say_what_next(out)


def _moefy(args: argparse.Namespace) -> None:
    from depthkit.interop.moefy import moefy

    out = moefy(args.source, _out(args, "moe"), args.experts, args.top_k, args.layers, args.overrides)
    _say_what_next(out)


def _out(args: argparse.Namespace, suffix: str) -> Path:
    return args.out or Path("runs") / f"{Path(args.source).name}-{suffix}"


def _say_what_next(out: Path) -> None:
    print(f"{out}: evaluate it with python eval.py {out}, train it with python train.py {out}/config.yaml")
