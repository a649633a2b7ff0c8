"""`python -m depthkit`: what there is to choose from, a schema for editors, studies of initialisation."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from depthkit import cli
from depthkit.interop import commands as models
from depthkit.registry import Registry, unknown

AXES = {
    "embeds": "depthkit.model.registries:EMBEDS",
    "heads": "depthkit.model.registries:HEADS",
    "mixers": "depthkit.model.registries:MIXERS",
    "ffns": "depthkit.model.registries:FFNS",
    "norms": "depthkit.model.registries:NORMS",
    "regulators": "depthkit.model.registries:REGULATORS",
    "streams": "depthkit.model.registries:STREAMS",
    "loops": "depthkit.model.loops.registries:LOOPS",
    "injections": "depthkit.model.loops.registries:INJECTS",
    "initial_states": "depthkit.model.loops.registries:STATES",
    "carries": "depthkit.model.loops.registries:CARRIES",
    "loop_readouts": "depthkit.model.loops.registries:READOUTS",
    "loop_curricula": "depthkit.training.looping:CURRICULA",
    "activation_checkpointing": "depthkit.model.registries:CHECKPOINTING",
    "inits": "depthkit.model.registries:INITS",
    "corpora": "depthkit.data:CORPORA",
    "tokenizers": "depthkit.data:TOKENIZERS",
    "sources": "depthkit.data.registries:SOURCES",
    "templates": "depthkit.data.registries:TEMPLATES",
    "optimizers": "depthkit.training.optim:OPTIMIZERS",
    "data_parallelism": "depthkit.training.parallel.layout:DATA_PARALLEL",
    "schedules": "depthkit.training.schedule:SCHEDULES",
    "probes": "depthkit.utilization:PROBES",
    "families": "depthkit.interop.families:FAMILIES",
    "tasks": "depthkit.interop.lm_eval.tasks:TASKS",
    "budgets": "depthkit.ladder.registries:BUDGETS",
    "sizes": "depthkit.ladder.registries:SIZES",
    "rates": "depthkit.ladder.registries:RATES",
    "launchers": "depthkit.ladder.registries:LAUNCHERS",
    "attention": "depthkit.kernels.attention:ATTENTION",
    "documents": "depthkit.config:DOCUMENTS",
}
"""What `list` can list, and where each registry lives."""


def main() -> int:
    """Parse the command line and run one command."""
    parser = argparse.ArgumentParser(prog="python -m depthkit", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="every kind of an axis, with its fields")
    listing.add_argument("axis", nargs="?", help=", ".join(AXES))
    listing.set_defaults(run=_list)
    schema = commands.add_parser("schema", help="JSON schema of config files, for editor completion")
    schema.set_defaults(run=_schema)
    init = commands.add_parser("init", help="measure models before their first step")
    init.add_argument(
        "config", metavar="CONFIG", type=Path, help="such as configs/studies/init_variance.yaml"
    )
    init.add_argument("overrides", metavar="key=value", nargs="*", help="such as depths='[8]'")
    init.add_argument(
        "--out", metavar="DIR", dest="run_dir", type=Path, help="default: runs/CONFIG-<8 hex digits>"
    )
    init.add_argument("--page", metavar="FILE", type=Path, help="also write a Markdown page and its picture")
    init.set_defaults(run=_init)
    folding = commands.add_parser("fold", help="a run's model with its gains folded into the weights")
    folding.add_argument("source", metavar="RUN", type=Path, help="a run or checkpoint folder")
    folding.add_argument("out", metavar="OUT", type=Path, help="the folder to write")
    folding.set_defaults(run=_fold)
    making = commands.add_parser("generate", help="continue a prompt with a run's model")
    making.add_argument("run_dir", metavar="RUN", type=Path, help="a run or checkpoint folder")
    making.add_argument("--prompt", default="", help="text to continue; default: the beginning of a document")
    making.add_argument("--tokens", type=int, default=200, help="tokens to add; default 200")
    making.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest; default 0.8")
    making.add_argument("--top-k", type=int, help="draw among the likeliest tokens only")
    making.add_argument("--seed", type=int, default=0, help="of the draws; default 0")
    making.add_argument(
        "--loops", type=int, help="loop count of looped segments; default: the configured one"
    )
    making.add_argument("--prompt-loops", type=int, help="loop count for the prompt; default: --loops")
    making.set_defaults(run=_generate)
    doctor = commands.add_parser("doctor", help="which kernels are active here, and why the others are not")
    doctor.set_defaults(run=_doctor)
    docs = commands.add_parser("docs", help="write the page of all regulators, norms and streams")
    docs.add_argument("page", metavar="FILE", type=Path, help="such as docs/regulators.md")
    docs.set_defaults(run=_docs)
    models.add(commands)
    args, rest = parser.parse_known_args()
    # argparse gives a list of positionals up at the first option, so later overrides come out here.
    if rest and (not hasattr(args, "overrides") or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        args.overrides += rest
    return args.run(args) or 0


def _list(args: argparse.Namespace) -> None:
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
    if args.axis is not None and args.axis not in AXES:
        raise ValueError(unknown("axis", args.axis, AXES))
    for axis in [args.axis] if args.axis else AXES:
        registry = registry_of(axis)
        console.print(f"\n[bold]{axis}[/bold]")
        for name in registry.names():
            _show(console, name, registry.get(name))


def registry_of(axis: str) -> Registry:
    """The registry behind a name in `AXES`."""
    module, _, name = AXES[axis].partition(":")
    return getattr(importlib.import_module(module), name)


def _show(console: Any, name: str, component: Any) -> None:
    summary = (component.__doc__ or "").strip().split("\n\n")[0]
    console.print(f"  [cyan]{name}[/cyan]  {' '.join(summary.split())}", soft_wrap=True)
    for label in ("equation", "source"):
        if text := getattr(component, label, ""):
            console.print(f"      {label}: {text}", markup=False, soft_wrap=True)
    for field, info in component.Config.model_fields.items():
        if field == "kind":
            continue
        default = "required" if info.is_required() else repr(info.get_default(call_default_factory=True))
        text = " ".join((info.description or "").split())
        console.print(f"      {field} = {default}  {text}", markup=False, soft_wrap=True)


def _schema(args: argparse.Namespace) -> None:
    from depthkit.config import json_schema

    print(json.dumps(json_schema(), indent=1))


def _init(args: argparse.Namespace) -> int:
    from depthkit import config

    document = config.load(args.config, args.overrides)
    if document.kind != "init_study":
        raise ValueError(f"{args.config}: is a {document.kind}, for train.py; `init` wants kind: init_study")
    return document.execute(args)


def _fold(args: argparse.Namespace) -> None:
    from depthkit.training.fold import fold_run

    fold_run(args.source, args.out)


def _generate(args: argparse.Namespace) -> None:
    from depthkit.model.generate import Sampling
    from depthkit.training.generate import continuation

    sampling = Sampling(args.temperature, args.top_k, args.seed)
    prompt_loops = args.loops if args.prompt_loops is None else args.prompt_loops
    print(args.prompt, end="", flush=True)
    for piece in continuation(args.run_dir, args.prompt, args.tokens, sampling, prompt_loops, args.loops):
        print(piece, end="", flush=True)
    print()


def _doctor(args: argparse.Namespace) -> None:
    from rich.console import Console

    from depthkit.kernels.doctor import show

    show(Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 110))


def _docs(args: argparse.Namespace) -> None:
    from depthkit.ladder.catalogue import write_catalogue

    write_catalogue(args.page)


if __name__ == "__main__":
    sys.exit(cli.run(main))
