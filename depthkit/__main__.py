"""`python -m depthkit`: what is there to choose from, and a schema for editors."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from typing import Any

from depthkit import cli
from depthkit.registry import Registry, unknown

AXES = {
    "embeds": "depthkit.model.registries:EMBEDS",
    "heads": "depthkit.model.registries:HEADS",
    "mixers": "depthkit.model.registries:MIXERS",
    "ffns": "depthkit.model.registries:FFNS",
    "norms": "depthkit.model.registries:NORMS",
    "regulators": "depthkit.model.registries:REGULATORS",
    "streams": "depthkit.model.registries:STREAMS",
    "inits": "depthkit.model.registries:INITS",
    "corpora": "depthkit.data:CORPORA",
    "tokenizers": "depthkit.data:TOKENIZERS",
    "optimizers": "depthkit.training.optim:OPTIMIZERS",
    "schedules": "depthkit.training.schedule:SCHEDULES",
    "probes": "depthkit.utilization:PROBES",
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
    args = parser.parse_args()
    args.run(args)
    return 0


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


if __name__ == "__main__":
    sys.exit(cli.run(main))
